// Elements are made by functions, and text is only ever text: nothing here parses HTML.

/** Return an element with properties, listeners (`onclick`) and children (elements or texts). */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

/** Copy a text, and say so on the button for a moment. */
async function copyText(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = label; }, 1400);
}

const copyButton = (label, text) =>
  h("button", { type: "button", className: "quiet", onclick: (event) => copyText(event.currentTarget, text()) }, label);

const count = (number) => Math.round(number).toLocaleString("en-US");
