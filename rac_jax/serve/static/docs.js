// The API, from openapi.json.

import { fill, find, make } from "./dom.js";
import { kept } from "./kept.js";

const theme = kept("localStorage", "theme");
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = theme ?? (dark ? "dark" : "light");

// A schema in one line: the name of an object, its fields (once), or a type.
function typed(schema, all, depth = 0, seen = new Set()) {
  if (!schema) return "";
  if (schema.$ref) {
    const found = all[schema.$ref.split("/").pop()];
    if (depth > 1 || seen.has(found)) return found.title;
    seen.add(found);
    const fields = Object.entries(found.properties ?? {}).map(([name, one]) => `${name}: ${typed(one, all, depth + 1, seen)}`);
    return `{${fields.join(", ")}}`;
  }
  if (schema.anyOf) return schema.anyOf.map((one) => typed(one, all, depth, seen)).join(" or ");
  if (schema.type === "array") return `[${typed(schema.items, all, depth, seen)}, …]`;
  if (schema.additionalProperties && schema.type === "object")
    return `{name: ${typed(schema.additionalProperties, all, depth + 1, seen)}}`;
  return schema.format ?? schema.type ?? "any";
}

// Text in which `names` stand out.
const prose = (text) => text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));

const line = (status, text) => make("tr", {}, make("td", {}, status), make("td", {}, text));

// What an operation answers if it succeeds; errors are alike everywhere.
function answers(operation, all) {
  const good = Object.entries(operation.responses).filter(([status]) => Number(status) < 300);
  return good.map(([status, response]) => {
    const [content] = Object.entries(response.content ?? {});
    return line(status, content ? typed(content[1].schema, all) || content[0] : response.description);
  });
}

function errors(operations) {
  const found = new Map();
  for (const operation of operations)
    for (const [status, response] of Object.entries(operation.responses))
      if (Number(status) >= 400) found.set(status, response.description);
  const lines = [...found].sort().map(([status, text]) => line(status, text));
  const title = make("p", {}, "An error is one sentence: ", make("code", {}, '{"error": "…"}'));
  return make("section", { class: "card operation" }, title, make("table", {}, ...lines));
}

function example(method, path, operation) {
  const url = location.origin + path.replace("{name}", "taught").replace("{change}", "disable").replace(/{\w+}/, "0");
  const query = path === "/api/rows" ? "?label=Mango" : "";
  const verb = method === "delete" ? "-X DELETE " : method === "post" && !operation.requestBody ? "-X POST " : "";
  const body = operation.requestBody ? " --data-binary @photo.jpg -H 'Content-Type: image/jpeg'" : "";
  const more = path === "/api/predict" ? `\ncurl '${url}' -F files=@a.jpg -F files=@b.jpg` : "";
  return make("pre", {}, `curl ${verb}'${url}${query}'${body}${more}`);
}

function shown(method, path, operation, all) {
  const parameters = (operation.parameters ?? []).map((one) =>
    make(
      "tr",
      {},
      make("td", {}, make("code", {}, one.name)),
      make("td", {}, `${one.in}, ${typed(one.schema, all)}`, one.required ? ", required" : `, default ${JSON.stringify(one.schema.default)}`),
    ),
  );
  return make(
    "section",
    { class: "card operation" },
    make("div", { class: "path" }, make("span", { class: `method ${method}` }, method.toUpperCase()), make("code", {}, path)),
    make("p", {}, ...prose(operation.description ?? operation.summary ?? "")),
    parameters.length ? make("table", {}, ...parameters) : null,
    make("table", {}, ...answers(operation, all)),
    example(method, path, operation),
  );
}

const description = await (await fetch("/openapi.json")).json();
const groups = new Map();
for (const [path, methods] of Object.entries(description.paths))
  for (const [method, operation] of Object.entries(methods)) {
    const [tag] = operation.tags ?? ["other"];
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(shown(method, path, operation, description.components.schemas));
  }
fill(
  find("main"),
  make("p", { class: "muted" }, description.info.description),
  ...[...groups].map(([tag, operations]) => make("div", { class: "group" }, make("h2", {}, tag), ...operations)),
  make("div", { class: "group" }, make("h2", {}, "errors"), errors(Object.values(description.paths).flatMap(Object.values))),
);
