// Returns the texts of the page with less contrast than WCAG 2.1 AA demands: 4.5, and 3 for large text.
(() => {
  const channels = (colour) => {
    const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const over = (top, alpha, below) => below.map((value, at) => top[at] * alpha + value * (1 - alpha));
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  // The colour behind an element: its own and its parents' backgrounds, the page's last.
  const behind = (element) => {
    const own = channels(getComputedStyle(element).backgroundColor);
    if (own.alpha === 1) return own.rgb;
    const below = element.parentElement && element.tagName !== "DIALOG" ? behind(element.parentElement) : [255, 255, 255];
    return over(own.rgb, own.alpha, below);
  };
  const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
  const weak = [];
  let checked = 0;
  const check = (element, style, text) => {
    const colour = channels(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const back = behind(element);
    const [light, dark] = [luminance(over(colour.rgb, colour.alpha * opacity(element), back)), luminance(back)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    checked += 1;
    if (ratio < (large ? 3 : 4.5)) weak.push(`${ratio.toFixed(2)}: ${text.trim().slice(0, 40)} (${element.tagName} ${element.className})`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const seen = element.checkVisibility() && !element.closest(".unseen, script, noscript, title");
    if (seen && texts.currentNode.data.trim()) check(element, getComputedStyle(element), texts.currentNode.data);
  }
  for (const input of document.querySelectorAll("input")) check(input, getComputedStyle(input, "::placeholder"), input.placeholder);
  for (const cell of document.querySelectorAll("td[data-label]")) {
    const label = getComputedStyle(cell, "::before");
    if (cell.checkVisibility() && label.content !== "none") check(cell, label, cell.dataset.label);
  }
  return { checked, weak };
})()
