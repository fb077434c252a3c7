// The page: ask about a picture, teach, undo, switch sources.

import * as answers from "./answer.js";
import * as api from "./api.js";
import { fill, find, make, once, plural } from "./dom.js";
import { keep, kept } from "./kept.js";
import { showClasses, showSources } from "./memory.js";

// asked: how many pictures; asking: whether one has no answer yet; taught: the rows of this visit
const state = { run: null, blob: null, answer: null, asked: 0, asking: false, taught: [] };
const GONE = [404, 409]; // what the server says of a row that cannot be undone any more

// A sentence, and a button to undo the last picture that was taught, if there is one.
function say(text, kind = "") {
  const last = state.taught.at(-1);
  const button = last && make("button", { type: "button", id: "undo", class: "plain" }, `Undo “${last.label}”`);
  button?.addEventListener("click", () => once(button, () => attempt(undo)));
  answers.say(text, kind, button);
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, "bad");
  }
}

async function ask(blob, caption = "", before = null) {
  const number = ++state.asked;
  state.asking = true;
  answers.waiting();
  try {
    const answer = await api.predict(blob);
    if (answer.keys !== state.run.keys || answer.version !== state.run.version) await refresh(); // edited elsewhere
    if (number !== state.asked) return; // a later picture was asked meanwhile
    if (blob !== state.blob) preview(blob, caption); // an unusable picture leaves the page as it is
    state.answer = answer;
    answers.showAnswer(answer, before, state.run.editable ? teaching() : null, state.run);
    answers.showNeighbours(answer, answer.keys);
  } finally {
    if (number === state.asked) {
      state.asking = false;
      answers.done();
    }
  }
}

// After an edit: ask about the picture that is shown, unless another one is being asked.
async function again() {
  if (state.blob && !state.asking) await ask(state.blob, "", state.answer.label);
}

function preview(blob, caption) {
  const image = find("preview");
  if (image.src) URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(blob);
  image.hidden = false;
  find("invite").hidden = true;
  find("caption").textContent = caption;
  state.blob = blob;
}

const askNew = (blob, caption) =>
  attempt(async () => {
    say("");
    if (!state.run) await refresh();
    if (state.run.most_bytes && blob.size > state.run.most_bytes) throw new Error("This picture has too many bytes.");
    await ask(blob, caption);
  });

function teaching() {
  const options = make("datalist", { id: "known" }, ...state.names.map((name) => make("option", { value: name })));
  const input = make("input", {
    id: "correct",
    list: "known",
    maxLength: 200,
    autocomplete: "off",
    placeholder: "a class, known or new",
    "aria-label": "The right class",
  });
  const button = make("button", { type: "submit", id: "teach", class: "main" }, "Teach");
  const submit = (event) => {
    event.preventDefault();
    const label = input.value.trim();
    if (label) once(button, () => attempt(() => teach(label)));
    else input.focus();
  };
  return make("form", { class: "teach", on: { submit } }, make("span", {}, "This is"), input, options, button);
}

async function teach(label) {
  const { keys } = state.run; // from before the row has a number
  const row = await api.teach(state.blob, label);
  state.taught.push({ ...row, keys });
  await refresh();
  await again();
  say(`Taught: this is “${row.label}”. It is in the memory now, as row ${row.row}.`, "good");
}

async function undo() {
  const row = state.taught.pop();
  try {
    await api.forget(row);
  } catch (error) {
    if (GONE.includes(error.status)) await refresh();
    else state.taught.push(row);
    throw error;
  }
  await refresh();
  await again();
  say(`Undone: the picture of “${row.label}” is not in the memory any more.`);
}

const edited = (work) =>
  attempt(async () => {
    await work();
    say(""); // what was said is of before
    await refresh();
    await again();
  });

async function refresh() {
  const run = await api.run();
  const [sources, classes] = await Promise.all([run.memory ? api.sources() : [], api.classes()]);
  const renumbered = run.keys !== state.run?.keys;
  Object.assign(state, { run, names: classes.map((one) => one.name) });
  find("run").textContent = `${run.run} · ${answers.counted(run)}`;
  find("memory").hidden = !run.memory;
  const change = (name, to) => edited(() => api.change(name, to));
  const remove = (name) => edited(() => api.remove(name));
  showSources(sources, run.editable, change, remove);
  showClasses(classes, run.keys);
  if (renumbered) attempt(() => showExamples(run.keys)); // the first time, too
}

async function showExamples(keys) {
  const { split, images, some } = await api.examples();
  find("try").hidden = !some.length;
  find("try-title").textContent = split
    ? `Or try one of the ${split} split (${plural(images, "image")})`
    : "Or try one of the memory's own images";
  fill(find("examples"), ...some.map((one) => example(one, keys)));
}

function example({ number, label }, keys) {
  const pick = () =>
    attempt(async () => {
      const blob = await api.picture(number, keys);
      await askNew(blob, label ? `Its label: ${label}` : "");
    });
  const image = make("img", { src: api.example(number, keys, true), alt: label ?? "", loading: "lazy" });
  const button = make("button", { type: "button", title: label ?? "", on: { click: pick } }, image);
  image.addEventListener("error", () => button.remove()); // a damaged file
  return button;
}

function listen() {
  find("file").addEventListener("change", ({ target }) => {
    if (target.files.length) askNew(target.files[0], target.files[0].name);
    target.value = "";
  });
  document.addEventListener("paste", ({ clipboardData }) => {
    const [file] = clipboardData.files;
    if (file) askNew(file, "Pasted");
  });
  let inside = 0;
  const over = (shown) => {
    find("over").hidden = !shown;
  };
  document.addEventListener("dragenter", (event) => {
    event.preventDefault();
    inside += 1;
    over(true);
  });
  document.addEventListener("dragleave", () => {
    inside -= 1;
    over(inside > 0);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    over(false);
    const [file] = event.dataTransfer.files;
    if (file) askNew(file, file.name);
  });
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => kept("localStorage", "theme") ?? (dark.matches ? "dark" : "light");
  const show = () => {
    document.documentElement.dataset.theme = chosen();
    find("theme").textContent = chosen() === "dark" ? "Light" : "Dark";
  };
  find("theme").addEventListener("click", () => {
    keep("localStorage", "theme", chosen() === "dark" ? "light" : "dark");
    show();
  });
  dark.addEventListener("change", show);
  show();
}

theme();
listen();
attempt(refresh);
