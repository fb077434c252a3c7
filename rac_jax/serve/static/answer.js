// The answer to a picture: the label, each voice's bar, and the neighbours.

import * as api from "./api.js";
import { bar, fill, find, make, percent, plural } from "./dom.js";

const SHOWN = 12; // neighbours, before "show all"
const UNFAMILIAR = 0.01;
const VOICES = {
  rac: "all voices",
  vote: "vote of the neighbours",
  prototype: "class means",
  base: "image classifier",
  text: "texts of the neighbours",
};

export function showAnswer(answer, before, teaching, run) {
  const voices = Object.entries(answer.voices);
  fill(
    find("answer"),
    make("p", { class: "eyebrow" }, "This looks like"),
    make(
      "h1",
      { id: "label" },
      answer.label,
      make("span", { class: "share" }, percent(answer.probability)),
    ),
    before && before !== answer.label
      ? make("p", { class: "was muted" }, "before: ", make("s", {}, before))
      : null,
    familiarity(answer),
    answer.labels ? make("p", { class: "familiarity", id: "labels" }, set(answer.labels, run)) : null,
    make("div", { class: "voices" }, ...voices.map(([name, vote], place) => voice(name, vote, place === 0))),
    teaching,
  );
}

function set(labels, run) {
  const earlier = run.calibrated ? "" : " (calibrated before the last edits)";
  return `With ${+(100 * run.coverage).toFixed(2)} % coverage${earlier}: ${labels.join(", ")}`;
}

function voice(name, vote, first) {
  return make(
    "div",
    { class: first ? "voice first" : "voice", title: name },
    make("span", { class: "who" }, VOICES[name] ?? name),
    make("span", { class: "what" }, vote.label),
    bar(vote.probability, first ? "strong" : ""),
    make("span", { class: "number" }, percent(vote.probability)),
  );
}

function familiarity(answer) {
  if (answer.familiarity === undefined) return null;
  const low = answer.familiarity < UNFAMILIAR;
  const text = low
    ? "Nothing in the memory is much like this picture. Do not rely on the answer."
    : `Nearer to the memory than ${percent(answer.familiarity)} of held-out images are.`;
  return make("p", { class: low ? "familiarity low" : "familiarity muted" }, text);
}

export function showNeighbours(answer, numbering) {
  const found = answer.neighbours ?? [];
  find("neighbours").hidden = !found.length;
  const same = found.filter((row) => row.supports).length;
  find("support").textContent = `${same} of ${found.length} have the label ${answer.label}`;
  const show = (number) => {
    fill(find("tiles"), ...found.slice(0, number).map((row) => tile(row, numbering)));
    find("more").hidden = number >= found.length;
  };
  find("more").textContent = `Show all ${found.length}`;
  find("more").onclick = () => show(found.length);
  show(SHOWN);
}

function tile(row, numbering) {
  const name = row.label ?? row.text;
  return make(
    "figure",
    { class: row.supports ? "tile supports" : "tile", title: `${row.text} (row ${row.row}, ${row.image})` },
    picture(row.row, numbering, name),
    make(
      "figcaption",
      {},
      make("strong", {}, name),
      make("span", { class: "near" }, bar(Math.max(0, row.similarity)), row.similarity.toFixed(2)),
      make("span", { class: "tag" }, row.source),
    ),
  );
}

// A row's picture; where there is none, a tile with its first letter.
export function picture(row, numbering, name) {
  const image = make("img", { src: api.thumbnail(row, numbering), alt: name, loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(make("span", { class: "blank" }, name.slice(0, 1))));
  return image;
}

export function waiting() {
  find("answer").setAttribute("aria-busy", "true");
}

export function done() {
  find("answer").removeAttribute("aria-busy");
}

export function say(text, kind = "", action = null) {
  const notice = find("notice");
  notice.hidden = !text && !action;
  notice.className = `notice ${kind}`;
  fill(notice, text, action);
}

export const counted = (run) => `${plural(run.rows, "image")} · ${plural(run.classes, "class", "classes")}`;
