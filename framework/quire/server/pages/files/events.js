// Server-sent events, read from a response's body: EventSource cannot send a key.

/** Take pieces of text, and return the data of the events that they complete. */
class EventReader {
  #rest = "";

  feed(piece) {
    this.#rest += piece;
    const events = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = events.pop();
    return events.map((event) => dataOf(event)).filter((data) => data !== null);
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}

/** Yield the JSON of each event until `[DONE]`.
 *  @throws {ServerError} The stream ended before that, or had an error event. */
async function* eventsOf(response) {
  const reader = new EventReader(), decoder = new TextDecoder(), body = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await body.read();
      for (const data of reader.feed(done ? "\n\n" : decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.status ?? 500, event.error.message, null, event.error.code);
        yield event;
      }
      if (done) throw new ServerError(0, "The connection broke before the end.");
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
    throw new ServerError(0, "The connection broke before the end.");
  } finally {
    body.cancel().catch(() => {});
  }
}
