// What the memory holds: its sources, with switches, and its classes, with their counts on a log axis.

import { picture } from "./answer.js";
import { bar, fill, find, make, plural } from "./dom.js";

const FIRST = 40; // classes, before "show all"
const BEFORE_ONE = 0.3; // a bar of one row is this part of a decade long

let showAll = false;

export function showSources(sources, editable, change, remove) {
  fill(find("sources"), ...sources.map((source) => one(source, editable, change, remove)));
}

function one(source, editable, change, remove) {
  const on = source.state === "enabled";
  const name = make("span", { class: "source" }, make("strong", {}, source.name), origin(source));
  const toggle = make("button", {
    type: "button",
    id: `use ${source.name}`,
    class: "switch",
    role: "switch",
    "aria-checked": String(on),
    "aria-label": `Use ${source.name}`,
    disabled: !editable,
    on: { click: () => change(source.name, on ? "disable" : "enable") },
  });
  const away = make(
    "button",
    {
      type: "button",
      id: `remove ${source.name}`,
      class: "plain away",
      title: `Remove ${source.name}`,
      "aria-label": `Remove ${source.name}`,
      on: { click: () => confirm(`Remove ${source.name} from the memory?`) && remove(source.name) },
    },
    "Remove",
  );
  return make("li", { class: on ? "" : "off" }, toggle, name, editable ? away : null);
}

function origin(source) {
  return make("span", { class: "muted" }, `${plural(source.rows, "image")} · ${source.origin}`);
}

export function showClasses(classes, numbering) {
  const largest = Math.max(10, ...classes.map((one) => one.rows));
  const decades = Math.ceil(Math.log10(largest) - 1e-9);
  const place = (rows) => (rows ? (Math.log10(rows) + BEFORE_ONE) / (decades + BEFORE_ONE) : 0);
  fill(find("axis"), ...ticks(decades, place));
  const filter = find("filter");
  filter.hidden = classes.length <= 12;
  const ordered = [...classes].sort((a, b) => b.rows - a.rows || a.name.localeCompare(b.name));
  const draw = () => {
    const wanted = filter.value.trim().toLowerCase();
    const found = ordered.filter((one) => one.name.toLowerCase().includes(wanted));
    const shown = showAll ? found : found.slice(0, FIRST);
    fill(find("classes"), ...shown.map((one) => line(one, place(one.rows), numbering)));
    find("all").hidden = shown.length === found.length;
    find("all").textContent = `Show all ${found.length}`;
  };
  filter.oninput = draw;
  find("all").onclick = () => {
    showAll = true;
    draw();
  };
  draw();
}

function ticks(decades, place) {
  return Array.from({ length: decades + 1 }, (_, power) => {
    const tick = make("span", {}, (10 ** power).toLocaleString("en"));
    tick.style.left = `${100 * place(10 ** power)}%`;
    return tick;
  });
}

function line(one, share, numbering) {
  return make(
    "li",
    {},
    make(
      "span",
      { class: "class" },
      make("strong", {}, one.name),
      one.trained ? null : make("span", { class: "tag new" }, "new"),
    ),
    make("span", { class: "count" }, bar(share), make("span", { class: "number" }, one.rows.toLocaleString("en"))),
    make("span", { class: "some" }, ...one.examples.map((row) => picture(row, numbering, one.name))),
  );
}
