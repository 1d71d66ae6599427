// The engine while it runs: one stream of views for figures, their last minute, and the KV blocks.

const HISTORY = 120; // views, half a second each
const RETRY_MS = 2000;

const rate = (value) => (value === null ? null : value < 10 ? value.toFixed(1) : count(value));
const percent = (value) => `${(100 * value).toFixed(value > 0 && value < .1 ? 1 : 0)}`;

function meanStepMs(view) {
  const steps = view.replicas.filter((each) => each.step_s !== null);
  return steps.length ? (1000 * steps.reduce((sum, each) => sum + each.step_s, 0)) / steps.length : null;
}

const FIGURES = [
  { label: "Running", unit: "requests", of: (view) => view.num_running, text: count },
  { label: "Waiting", unit: "requests", of: (view) => view.num_waiting, text: count },
  { label: "Generated", unit: "tokens/s", of: (view) => view.generated_tokens_per_s, text: rate },
  { label: "Computed", unit: "tokens/s", of: (view) => view.computed_tokens_per_s, text: rate },
  { label: "Step", unit: "ms", of: meanStepMs, text: (value) => value.toFixed(value < 10 ? 1 : 0), absent: "no step" },
  { label: "Prefix cache hits", unit: "%", of: (view) => view.prefix_hit_rate, text: percent },
  { label: "Drafts accepted", unit: "%", of: (view) => view.draft_acceptance_rate, text: percent, absent: "no drafts" },
];

class Figure {
  constructor(spec) {
    this.spec = spec;
    this.values = [];
    this.value = h("div", { className: "value" });
    this.canvas = h("canvas", { ariaHidden: "true" });
    this.element = h("div", { className: "figure" }, h("div", { className: "label" }, spec.label), this.value, this.canvas);
  }

  add(view) {
    const value = this.spec.of(view);
    this.values = [...this.values, value].slice(-HISTORY);
    if (value === null) {
      this.value.replaceChildren(h("span", { className: "absent" }, this.spec.absent ?? "not measured yet"));
    } else {
      this.value.replaceChildren(this.spec.text(value), h("small", {}, this.spec.unit));
    }
    this.#draw();
  }

  #draw() {
    const { canvas, values } = this, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    const context = canvas.getContext("2d"), top = Math.max(1e-9, ...values.map((each) => each ?? 0));
    context.scale(devicePixelRatio, devicePixelRatio);
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--accent");
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let isDown = false;
    values.forEach((value, index) => {
      if (value === null) { isDown = false; return; }
      const x = width - ((values.length - 1 - index) * width) / (HISTORY - 1), y = height - 1.5 - (value / top) * (height - 3);
      if (isDown) context.lineTo(x, y); else context.moveTo(x, y);
      isDown = true;
    });
    context.stroke();
  }
}

class Replica {
  constructor() {
    this.title = h("h2");
    this.facts = h("div", { className: "facts" });
    this.map = new BlockMapCanvas();
    this.absent = h("p", { className: "small soft" });
    this.element = h("section", { className: "replica" }, this.title, this.facts, this.absent, this.map.element);
  }

  show(view, isOnly) {
    this.title.textContent = isOnly ? "KV blocks" : `Replica ${view.index}`;
    const used = view.num_blocks ? ` (${percent(view.num_used_blocks / view.num_blocks)} %)` : "";
    const facts = [
      ["blocks in use", `${count(view.num_used_blocks)} of ${count(view.num_blocks)}${used}`],
      ["running", count(view.num_running)], ["waiting", count(view.num_waiting)], ["preemptions", count(view.num_preemptions)],
      ["steps/s", view.steps_per_s === null ? "–" : rate(view.steps_per_s)],
    ];
    this.facts.replaceChildren(...facts.map(([name, value]) => h("span", {}, h("b", {}, value), ` ${name}`)));
    this.absent.hidden = view.block_map !== null && view.is_up;
    this.absent.textContent = !view.is_up ? "This replica is down; it is started again." : "The engine has not reported its blocks yet; a long step may run.";
    this.map.element.hidden = view.block_map === null;
    if (view.is_silent) this.facts.append(h("span", { className: "bad" }, "does not answer"));
    if (view.block_map) this.map.show(view.block_map);
  }
}

class EnginePanel {
  constructor() {
    this.figures = FIGURES.map((spec) => new Figure(spec));
    this.replicas = [];
    this.abort = null;
    byId("figures").append(...this.figures.map((figure) => figure.element));
  }

  /** Follow the engine until `stop`, again and again if the stream ends. */
  async start() {
    if (this.abort) return;
    const abort = this.abort = new AbortController();
    while (!abort.signal.aborted) {
      try {
        const response = await send("/v1/engine/stream", { signal: abort.signal });
        for await (const view of eventsOf(response)) this.#show(view);
        this.#notice(new ServerError(0, "The server has ended the stream: it is shutting down."));
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof ServerError)) throw error;
        if (error.status === 401) {
          this.abort = null;
          this.#notice(error);
          if (await askForKey(error.message)) refresh();
          return;
        }
        this.#notice(error);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  #show(view) {
    this.#notice(null);
    showState(view.state);
    this.figures.forEach((figure) => figure.add(view));
    while (this.replicas.length < view.replicas.length) {
      this.replicas.push(new Replica());
      byId("replicas").append(this.replicas.at(-1).element);
    }
    view.replicas.forEach((each, index) => this.replicas[index].show(each, view.replicas.length === 1));
  }

  #notice(error) {
    const text = error && `${error.message} ${error.status === 401 ? "" : "Trying again."}`;
    byId("engine-notice").replaceChildren(...(error ? [h("div", { className: "notice error" }, h("span", {}, text))] : []));
  }
}
