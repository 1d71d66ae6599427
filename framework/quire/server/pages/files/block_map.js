// The KV blocks of one engine on a canvas, one square a block.

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

/** Return the colour of a code; hues of requests are far apart for numbers that are near. */
function colourOf(code) {
  const holder = code >> 1, isCached = code & 1, dark = isDark();
  if (holder === HOLDER.NULL) return dark ? "#55524a" : "#b9b4a6";
  if (holder === HOLDER.FREE && !isCached) return dark ? "#262521" : "#efece4";
  if (holder === HOLDER.FREE) return dark ? "#5d5138" : "#dccfa6";
  if (holder === HOLDER.HELD) return dark ? "#77736a" : "#98938a";
  if (holder === HOLDER.SHARED) return dark ? "#e8e4da" : "#2b2a27";
  const hue = (170 + (holder - HOLDER.FIRST_OWNER) * 137.508) % 360;
  const light = dark ? (isCached ? 62 : 48) : (isCached ? 42 : 58);
  return `hsl(${hue.toFixed(1)} ${isCached ? 62 : 48}% ${light}%)`;
}

class BlockMapCanvas {
  constructor() {
    this.canvas = h("canvas", { className: "map", role: "img" });
    this.hover = h("p", { className: "hover small soft number", ariaLive: "off" });
    this.legend = h("ul", { className: "legend number" });
    this.element = h("div", {}, this.canvas, this.hover, this.legend);
    this.map = null;
    this.cells = new Uint16Array();
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => { this.hover.textContent = this.#note(); });
    new ResizeObserver(() => this.#draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  show(map) {
    this.map = map;
    this.cells = cellsOf(map.runs);
    this.#draw();
    this.#explain();
  }

  #draw() {
    const width = this.element.clientWidth, { cells, canvas } = this;
    if (!width || !cells.length) return;
    const side = sideOf(cells.length, width), columns = Math.floor(width / side), scale = devicePixelRatio;
    const rows = Math.ceil(cells.length / columns), gap = side >= 5 ? 1 : 0;
    Object.assign(this, { side, columns });
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(rows * side * scale);
    canvas.style.height = `${rows * side}px`;
    const context = canvas.getContext("2d"), colours = new Map();
    context.scale(scale, scale);
    cells.forEach((code, index) => {
      if (!colours.has(code)) colours.set(code, colourOf(code));
      context.fillStyle = colours.get(code);
      context.fillRect((index % columns) * side, Math.floor(index / columns) * side, side - gap, side - gap);
    });
  }

  #explain() {
    const { owned, shared, held, cached, free, owners } = countsOf(this.map);
    const rows = [
      [2 * HOLDER.FIRST_OWNER, `${count(owned)} held by ${owners} ${owners === 1 ? "request" : "requests"}, a colour each`],
      [2 * HOLDER.SHARED, `${count(shared)} shared by several`],
      [2 * HOLDER.FREE + 1, `${count(cached)} cached, ready for a hit`],
      [2 * HOLDER.FREE, `${count(free)} free`],
      ...(held ? [[2 * HOLDER.HELD, `${count(held)} in transfer`]] : []),
    ];
    this.legend.replaceChildren(...rows.map(([code, text]) => h("li", {}, swatch(code), text)));
    this.canvas.setAttribute("aria-label", `KV blocks: ${rows.map(([, text]) => text).join("; ")}`);
    if (!this.isPointed) this.hover.textContent = this.#note();
  }

  #note() {
    this.isPointed = false;
    const { blocks_per_cell: width, age_s: age } = this.map;
    const notes = [];
    if (width > 1) notes.push(`Each square is the first of ${width} blocks; counts are estimates.`);
    if (age > 3) notes.push(`The engine reported this ${Math.round(age)} s ago; a step takes long.`);
    return notes.join(" ");
  }

  #point(event) {
    const column = Math.floor(event.offsetX / this.side), row = Math.floor(event.offsetY / this.side);
    const cell = row * this.columns + column;
    this.isPointed = column < this.columns && cell < this.cells.length;
    this.hover.textContent = this.isPointed
      ? `Block ${count(cell * this.map.blocks_per_cell)}: ${wordsOf(this.cells[cell])}`
      : this.#note();
  }
}

/** Return the side of a square, such that all of them fit a width and a height that is comfortable. */
function sideOf(numCells, width) {
  const height = Math.min(420, innerHeight * .42);
  const side = Math.floor(Math.sqrt((width * height) / numCells));
  return Math.max(1, Math.min(14, side));
}

function swatch(code) {
  const canvas = h("canvas", { width: 1, height: 1, ariaHidden: "true" }), context = canvas.getContext("2d");
  context.fillStyle = colourOf(code);
  context.fillRect(0, 0, 1, 1);
  return canvas;
}
