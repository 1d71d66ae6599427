// A conversation: turns of the user, of the model, and of tools, with a stream of at most one.

const FINISHES = {
  length: "The completion ended at the limit of tokens.",
  repetition: "The completion ended because it repeated itself.",
  abort: "The server stopped the completion.",
};

class Chat {
  constructor() {
    this.turns = []; // {role: "user", content} | {role: "assistant", completion, element, ...}
    this.abort = null;
    this.lastBody = null;
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.#submit(); });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.#submit(); }
    });
    byId("prompt").addEventListener("input", fitPrompt);
    byId("clear").addEventListener("click", () => this.#clear());
    byId("curl").addEventListener("click", (event) => this.#copyCurl(event.currentTarget));
    this.#show();
  }

  get isStreaming() { return this.abort !== null; }

  // -- what the user does -------------------------------------------------------------------------

  #submit() {
    if (this.isStreaming) { this.abort.abort(); return; }
    const prompt = byId("prompt"), content = prompt.value.trim();
    if (!content || !this.#answerCalls(true)) return;
    this.turns.push({ role: "user", content });
    prompt.value = "";
    fitPrompt();
    this.#generate();
  }

  #clear() {
    this.abort?.abort();
    this.turns = [];
    this.#notice(null);
    this.#show();
    byId("prompt").focus();
  }

  #regenerate(index) {
    this.turns.length = index;
    this.#generate();
  }

  #edit(index, content) {
    this.turns.length = index;
    this.turns.push({ role: "user", content });
    this.#generate();
  }

  /** Whether all calls of the last turn have results; those without one get an empty one if forced. */
  #answerCalls(isForced) {
    const calls = this.turns.at(-1)?.completion?.calls ?? [];
    return isForced || calls.every((call) => call.result.trim());
  }

  #copyCurl(button) {
    try {
      const typed = byId("prompt").value.trim();
      const extra = typed ? [{ role: "user", content: typed }] : [];
      const body = typed || !this.lastBody ? requestBody([...this.#messages(), ...extra]) : this.lastBody;
      copyText(button, curlOf("POST", "/v1/chat/completions", JSON.stringify(body), { hasKey: keys.get() !== "", isStream: true }));
    } catch (error) {
      byId("settings-error").textContent = error.message;
    }
  }

  // -- requests -----------------------------------------------------------------------------------

  #messages() {
    return this.turns.flatMap((turn) => {
      if (turn.role === "user") return [{ role: "user", content: turn.content }];
      const results = turn.completion.calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }));
      return [turn.completion.message, ...results];
    });
  }

  async #generate() {
    this.#notice(null);
    byId("settings-error").textContent = "";
    let body;
    try {
      body = requestBody(this.#messages());
    } catch (error) {
      byId("settings-error").textContent = error.message;
      byId("settings").open = true;
      this.#show();
      return;
    }
    this.lastBody = body;
    const turn = { role: "assistant", completion: new Completion(), model: body.model ?? "model" };
    this.turns.push(turn);
    this.abort = new AbortController();
    this.#show();
    await this.#stream(body, turn);
    this.abort = null;
    if (!turn.completion.content && !turn.completion.reasoning && !turn.completion.calls.length && turn.hasFailed) {
      this.turns.splice(this.turns.indexOf(turn), 1);
    }
    this.#show();
  }

  async #stream(body, turn) {
    try {
      const response = await send("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal: this.abort.signal });
      for await (const event of eventsOf(response)) {
        turn.completion.take(event);
        this.#update(turn);
      }
      const finish = FINISHES[turn.completion.finishReason];
      if (finish) this.#notice(h("div", { className: "notice" }, h("span", {}, finish)));
    } catch (error) {
      turn.hasFailed = true;
      if (error.name === "AbortError") turn.completion.finishReason = "stopped";
      else await this.#explain(error, turn);
    }
  }

  async #explain(error, turn) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401 && await askForKey(keys.get() ? "The server does not accept this key." : "This server needs a key.")) {
      await refresh();
      setTimeout(() => this.#retry(turn));
      return;
    }
    this.#notice(retryNotice(error, () => this.#retry(turn)));
  }

  /** Generate again in place of a turn that has failed, if it is still there. */
  #retry(failed) {
    if (this.isStreaming) return;
    if (this.turns.at(-1) === failed) this.turns.pop();
    if (this.turns.length) this.#generate();
  }

  // -- what is seen -------------------------------------------------------------------------------

  #notice(element) { byId("chat-notice").replaceChildren(...(element ? [element] : [])); }

  #show() {
    const messages = byId("messages");
    byId("send").textContent = this.isStreaming ? "Stop" : "Send";
    byId("clear").disabled = !this.turns.length;
    this.turns.forEach((turn) => { turn.element = null; });
    messages.replaceChildren(...(this.turns.length ? this.turns.map((turn, index) => this.#element(turn, index)) : [emptyChat()]));
    messages.scrollTop = messages.scrollHeight;
  }

  #element(turn, index) {
    return turn.role === "user" ? this.#userElement(turn, index) : this.#modelElement(turn, index);
  }

  #userElement(turn, index) {
    const text = h("div", { className: "text" }, turn.content);
    const edit = h("button", { type: "button", className: "quiet", disabled: this.isStreaming, onclick: () => text.replaceWith(this.#editor(turn, index)) }, "Edit");
    return h("article", { className: "message user", ariaLabel: "Your message" },
      h("div", { className: "who" }, h("strong", {}, "You"), h("span", { className: "actions" }, edit)), text);
  }

  #editor(turn, index) {
    const area = h("textarea", { rows: Math.min(12, turn.content.split("\n").length + 1), value: turn.content, ariaLabel: "Message" });
    const editor = h("form", { onsubmit: (event) => { event.preventDefault(); if (area.value.trim()) this.#edit(index, area.value.trim()); } },
      area, h("div", { className: "row" }, h("button", { className: "primary" }, "Send again"),
        h("button", { type: "button", onclick: () => this.#show() }, "Cancel")));
    setTimeout(() => area.focus());
    return editor;
  }

  #modelElement(turn, index) {
    const isLast = index === this.turns.length - 1, isLive = isLast && this.isStreaming;
    const actions = h("span", { className: "actions" }, copyButton("Copy", () => turn.completion.content),
      h("button", { type: "button", className: "quiet", disabled: this.isStreaming, onclick: () => this.#regenerate(index) }, "Regenerate"));
    const stopped = turn.completion.finishReason === "stopped" ? h("span", {}, "stopped") : null;
    const reasoning = h("details", { className: "reasoning" }, h("summary", {}, "Reasoning"), h("div"));
    const body = h("div", { className: "markdown" }), calls = h("div"), figures = h("p", { className: "figures" }, isLive ? "" : turn.completion.figures);
    turn.element = h("article", { className: `message assistant${isLive ? " is-streaming" : ""}`, ariaLabel: "Completion" },
      h("div", { className: "who" }, h("strong", {}, turn.model), stopped, isLive ? null : actions), reasoning, body, calls, figures);
    turn.parts = { reasoning, body, calls, canAnswer: isLast && !isLive };
    this.#update(turn);
    return turn.element;
  }

  #update(turn) {
    if (!turn.element) return;
    const messages = byId("messages"), { reasoning, body, calls, canAnswer } = turn.parts, { completion } = turn;
    const isAtEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 60;
    reasoning.hidden = !completion.reasoning;
    reasoning.lastChild.textContent = completion.reasoning;
    showMarkdown(body, completion.content);
    if (completion.calls.length) calls.replaceChildren(...completion.calls.map((call) => callElement(call, canAnswer)));
    if (completion.calls.length && canAnswer) calls.append(this.#resultButton());
    if (isAtEnd) messages.scrollTop = messages.scrollHeight;
  }

  #resultButton() {
    return h("div", { className: "row results" }, h("button", {
      type: "button", className: "primary", onclick: () => {
        if (this.#answerCalls(false)) this.#generate();
        else this.#notice(h("div", { className: "notice" }, h("span", {}, "Give each call a result first.")));
      },
    }, "Send results"));
  }
}

function callElement(call, canAnswer) {
  let text = call.arguments;
  try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not complete yet */ }
  const result = canAnswer
    ? h("label", {}, "Result", h("textarea", { className: "code", rows: 2, value: call.result, spellcheck: false, oninput: (event) => { call.result = event.target.value; } }))
    : call.result ? h("pre", {}, call.result) : null;
  return h("div", { className: "call" },
    h("div", { className: "row" }, h("span", { className: "name" }, call.name || "…"), h("span", { className: "small soft" }, "tool call")),
    h("pre", {}, text), result);
}

function emptyChat() {
  return h("div", { className: "empty" }, h("h2", {}, "Ask the model something."),
    h("p", { className: "soft" }, "Tools, structured output and sampling are in the settings."));
}

/** A message about an error; where the server said when to try again, the button waits until then. */
function retryNotice(error, retry) {
  const button = h("button", { type: "button", onclick: retry }, "Try again");
  const notice = h("div", { className: "notice error" }, h("span", {}, error.message), button);
  if (error.retryAfterS === null) return notice;
  const endMs = performance.now() + error.retryAfterS * 1000;
  const tick = () => {
    const leftS = Math.ceil((endMs - performance.now()) / 1000);
    button.disabled = leftS > 0;
    button.textContent = leftS > 0 ? `Try again in ${leftS} s` : "Try again";
    if (leftS > 0) setTimeout(tick, 250);
  };
  tick();
  return notice;
}

function fitPrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}
