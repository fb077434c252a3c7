// Elements from data. Strings become text nodes, never markup.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "class") node.className = value;
    else if (name.startsWith("aria-") || name === "role" || name === "list") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Replace what a node holds. The keyboard stays at the element of the same id or, if it is gone, at the node.
export function fill(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.id : null;
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  if (focused !== null) (find(focused) ?? node).focus({ preventScroll: true });
}

// Let a button do its work, once at a time. (A button that is `disabled` loses the keyboard.)
export async function once(button, work) {
  if (button.getAttribute("aria-disabled")) return;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 ? 0 : 1)} %`;

// A bar whose length is a share from 0 to 1.
export function bar(share, kind = "") {
  const inside = make("span", { class: `fill ${kind}` });
  inside.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  return make("span", { class: "track" }, inside);
}

export function plural(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
