// What the browser keeps for the page, in localStorage or sessionStorage (`where`). Where cookies are blocked, these
// cannot be used, and values last until the page is closed.

const here = {};

export function keep(where, name, value) {
  here[name] = value;
  try {
    window[where].setItem(name, value);
  } catch {
    // blocked
  }
}

export function kept(where, name) {
  try {
    return here[name] ?? window[where].getItem(name);
  } catch {
    return null;
  }
}
