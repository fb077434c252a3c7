// The page: ask about a picture, teach, undo, switch sources.

import * as answers from "./answer.js";
import * as api from "./api.js";
import { fill, find, make, plural } from "./dom.js";
import { showClasses, showSources } from "./memory.js";

const state = { run: null, blob: null, answer: null, before: null, asked: 0, taught: [] }; // taught: rows of this visit
const GONE = [404, 409]; // what the server says of a row that cannot be undone any more

// A sentence, and a button to undo the last picture that was taught, if there is one.
function say(text, kind = "") {
  const last = state.taught.at(-1);
  const button = last && make("button", { type: "button", class: "plain" }, `Undo “${last.label}”`);
  button?.addEventListener("click", () => attempt(() => undo(button)));
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
  answers.waiting();
  try {
    const answer = await api.predict(blob);
    if (number !== state.asked) return; // a later picture was asked meanwhile
    if (blob !== state.blob) preview(blob, caption); // an unusable picture leaves the page as it is
    Object.assign(state, { answer, before });
    answers.showAnswer(answer, before, state.run.editable ? teaching() : null, state.run.coverage);
    answers.showNeighbours(answer, state.run.keys);
  } finally {
    if (number === state.asked) answers.done();
  }
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
  const button = make("button", { type: "submit", class: "main" }, "Teach");
  const submit = (event) => {
    event.preventDefault();
    const label = input.value.trim();
    if (label) attempt(() => teach(label, button));
    else input.focus();
  };
  return make("form", { class: "teach", on: { submit } }, make("span", {}, "This is"), input, options, button);
}

async function teach(label, button) {
  button.disabled = true;
  const before = state.answer.label;
  try {
    const row = await api.teach(state.blob, label);
    state.taught.push({ ...row, keys: state.run.keys });
    await refresh();
    await ask(state.blob, "", before);
    say(`Taught: this is “${row.label}”. It is in the memory now, as row ${row.row}.`, "good");
  } finally {
    button.disabled = false;
  }
}

async function undo(button) {
  button.disabled = true;
  const row = state.taught.pop();
  try {
    await api.forget(row);
  } catch (error) {
    if (!GONE.includes(error.status)) state.taught.push(row);
    throw error;
  }
  await refresh();
  await ask(state.blob, "", state.answer?.label);
  say(`Undone: the picture of “${row.label}” is not in the memory any more.`);
}

const edited = (work) =>
  attempt(async () => {
    await work();
    await refresh();
    if (state.blob) await ask(state.blob, "", state.answer?.label);
  });

async function refresh() {
  state.run = await api.run();
  find("run").textContent = `${state.run.run} · ${answers.counted(state.run)}`;
  find("memory").hidden = !state.run.memory;
  const [sources, classes] = await Promise.all([state.run.memory ? api.sources() : [], api.classes()]);
  state.names = classes.map((one) => one.name);
  const change = (name, to) => edited(() => api.change(name, to));
  const remove = (name) => edited(() => api.remove(name));
  showSources(sources, state.run.editable, change, remove);
  showClasses(classes, state.run.keys);
}

async function showExamples() {
  const { split, images, some } = await api.examples();
  find("try").hidden = !some.length;
  find("try-title").textContent = split
    ? `Or try one of the ${split} split (${plural(images, "image")})`
    : "Or try one of the memory's own images";
  fill(find("examples"), ...some.map(example));
}

function example({ number, label }) {
  const pick = () =>
    attempt(async () => {
      const blob = await api.picture(number, state.run.keys);
      await askNew(blob, label ? `Its label: ${label}` : "");
    });
  const image = make("img", { src: api.example(number, state.run.keys, true), alt: label ?? "", loading: "lazy" });
  return make("button", { type: "button", title: label ?? "", on: { click: pick } }, image);
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
  const chosen = () => localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
  const show = () => {
    document.documentElement.dataset.theme = chosen();
    find("theme").textContent = chosen() === "dark" ? "Light" : "Dark";
  };
  find("theme").addEventListener("click", () => {
    localStorage.setItem("theme", chosen() === "dark" ? "light" : "dark");
    show();
  });
  dark.addEventListener("change", show);
  show();
}

theme();
listen();
attempt(async () => {
  await refresh();
  await showExamples();
});
