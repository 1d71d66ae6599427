// The message that a stream of deltas adds up to, and how fast it came.

class Completion {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.finishReason = null;
    this.usage = null;
    this.beganMs = performance.now();
    this.firstMs = null;
    this.lastMs = null;
  }

  /** Take one event of the stream. */
  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls?.length) {
      this.lastMs = performance.now();
      this.firstMs ??= this.lastMs;
    }
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const delta of calls ?? []) this.#takeCall(delta);
    this.finishReason = choice.finish_reason ?? this.finishReason;
  }

  #takeCall({ index, id, function: part }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "", result: "" });
    call.id = id ?? call.id;
    call.name = part?.name ?? call.name;
    call.arguments += part?.arguments ?? "";
  }

  /** The message as later requests of the conversation have it. */
  get message() {
    const message = { role: "assistant", content: this.content };
    if (this.calls.length) {
      message.tool_calls = this.calls.map((call) => (
        { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    return message;
  }

  /** Counts and speeds in words. */
  get figures() {
    if (!this.usage) return "";
    const { prompt_tokens: prompt, completion_tokens: made, prompt_tokens_details: details } = this.usage;
    const cached = details?.cached_tokens ? ` (${count(details.cached_tokens)} cached)` : "";
    const parts = [`${count(prompt)} prompt${cached} + ${count(made)} completion tokens`];
    if (this.firstMs !== null) parts.push(`first after ${count(this.firstMs - this.beganMs)} ms`);
    const seconds = (this.lastMs - this.firstMs) / 1000;
    if (made > 1 && seconds > 0) parts.push(`${((made - 1) / seconds).toFixed(1)} tokens/s`);
    return parts.join(" · ");
  }
}
