// Helpers for tables and lists. A refresh keeps the elements of rows, so that selected text stays selected, the focus
// stays, and the row under the pointer stays there. Image names are callers' input, so all text is set as text and
// never as HTML.

const byId = (id) => document.getElementById(id);

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Makes one child of `parent` for each item. New children are copies of the template; `fill(child, item)` fills each.
function sync(parent, template, items, key, fill) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const children = items.map((item) => {
    const name = key(item);
    const child = known.get(name) || byId(template).content.firstElementChild.cloneNode(true);
    known.delete(name);
    child.dataset.key = name;
    fill(child, item);
    return child;
  });
  // `known` has only one of the children with equal keys.
  const kept = new Set(children);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  reorder(parent, children);
  const scroll = parent.closest(".scroll");
  if (scroll) scroll.querySelector(".empty").hidden = items.length > 0;
}

// Puts children in order. An element that is moved loses the focus, so the child that has the focus stays.
function reorder(parent, children) {
  const kept = children.findIndex((child) => child.parentNode === parent && child.contains(document.activeElement));
  let next = children[kept];
  for (const child of children.slice(0, Math.max(0, kept)).reverse()) {
    if (child.nextElementSibling !== next || child.parentNode !== parent) next.before(child);
    next = child;
  }
  let previous = kept < 0 ? null : children[kept];
  for (const child of children.slice(kept + 1)) {
    const placed = child.parentNode === parent && child.previousElementSibling === previous;
    if (!placed) parent.insertBefore(child, previous ? previous.nextElementSibling : parent.firstElementChild);
    previous = child;
  }
}

function setNumber(cell, value, text = short(value)) {
  setText(cell, text);
  cell.classList.toggle("zero", value === 0);
}

function setLevel(target, level) {
  for (const one of LEVELS) target.classList.toggle(one, one === level);
}

// Fills the cells that display the calls of the last minute, from the same fields of `numbers`.
function setSuccess(cell, minute) {
  setText(cell, successWords(minute));
  const level = failedLevel(minute);
  setLevel(cell, level === "bad" || level === "warn" ? level : "");
}

function setOwner(cell, status, place, address) {
  const [dot, words] = cell.children;
  const runner = status.shards[place];
  dot.hidden = runner === undefined;
  dot.style.background = runner === undefined ? "" : stateColour(runner.state, place);
  setText(words, (runner && runnerName(runner)) || address || DASH);
  cell.title = address || "";
}

function setImage(box, image, title = image) {
  const [path, last] = splitImage(image);
  box.title = title;
  setText(box.children[0], last);
  setText(box.children[1], path);
}
