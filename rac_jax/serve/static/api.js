// Requests to the server. An error has the server's own sentence.

import { keep, kept } from "./kept.js";

const TOKEN = "token";

// From another machine, edits need the token: open the page as http://host:port/#token=…
if (location.hash.startsWith("#token=")) {
  keep("sessionStorage", TOKEN, decoded(location.hash.slice("#token=".length)));
  history.replaceState(null, "", location.pathname);
}

// A token with a % that was not written as %25 is taken as it is.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function call(path, options = {}) {
  const token = kept("sessionStorage", TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server does not answer.");
  }
  const body = await response.json().catch(() => ({ error: `The server said ${response.status}.` }));
  const error = body.error ?? `The server said ${response.status}.`;
  if (!response.ok) throw Object.assign(new Error(error), { status: response.status });
  return body;
}

const image = (blob) => ({ method: "POST", body: blob, headers: { "Content-Type": "image/*" } });
const named = (source) => `/api/sources/${encodeURIComponent(source)}`;

export const run = () => call("/api/run");
export const predict = (blob) => call("/api/predict", image(blob));
export const sources = () => call("/api/sources");
export const classes = () => call("/api/classes");
export const examples = () => call("/api/examples");
export const teach = (blob, label) => call(`/api/rows?${new URLSearchParams({ label })}`, image(blob));
export const forget = ({ row, image: reference, keys }) =>
  call(`/api/rows/${row}?${new URLSearchParams({ image: reference, keys })}`, { method: "DELETE" });
export const change = (source, state) => call(`${named(source)}/${state}`, { method: "POST" });
export const remove = (source) => call(named(source), { method: "DELETE" });

export const thumbnail = (row, numbering) => `/api/rows/${row}/thumbnail?of=${encodeURIComponent(numbering)}`;
export const example = (number, numbering, small) =>
  `/api/examples/${number}?${new URLSearchParams({ of: numbering, small })}`;

export async function picture(number, numbering) {
  const response = await fetch(example(number, numbering, false));
  if (!response.ok) throw new Error("The picture is not there any more.");
  return response.blob();
}
