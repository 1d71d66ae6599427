// Requests to the server, with the key of this tab, and errors that say what to do.

const KEY_NAME = "quire.key";
const keys = {
  get: () => sessionStorage.getItem(KEY_NAME) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY_NAME, key) : sessionStorage.removeItem(KEY_NAME)),
};

class ServerError extends Error {
  constructor(status, message, retryAfterS = null, code = null) {
    super(message);
    Object.assign(this, { status, retryAfterS, code });
  }
}

/** Return the seconds that a response asks to wait; null if it does not. */
function retryAfter(headers) {
  const ms = Number(headers.get("retry-after-ms")), seconds = Number(headers.get("retry-after"));
  if (ms > 0) return ms / 1000;
  return seconds > 0 ? seconds : null;
}

function headersOf(body) {
  const headers = {};
  if (keys.get()) headers.authorization = `Bearer ${keys.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return headers;
}

/** Send a request; return the response if it is a success.
 *  @throws {ServerError} What the server answered, or status 0 if it did not answer. */
async function send(path, { method = "GET", body, signal } = {}) {
  let response;
  try {
    response = await fetch(path, { method, body, signal, headers: headersOf(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer. Is it running?");
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

async function errorOf(response) {
  let message = `The server answered ${response.status}.`, code = null;
  try {
    const { error } = await response.json();
    message = error.message ?? message;
    code = error.code ?? null;
  } catch { /* no JSON: the status is all there is to say */ }
  return new ServerError(response.status, message, retryAfter(response.headers), code);
}

const getJson = async (path) => (await send(path)).json();

/** Ask for the key; resolve to whether one was entered. */
function askForKey(reason = "") {
  const dialog = byId("key-dialog"), input = byId("key-input");
  byId("key-reason").textContent = reason;
  input.value = keys.get();
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "save") keys.set(input.value.trim());
      showKey();
      resolve(dialog.returnValue === "save");
    }, { once: true });
  });
}

function showKey() {
  byId("key").textContent = keys.get() ? "Key set" : "Set key";
}

function setUpKey(onChange) {
  showKey();
  byId("key").addEventListener("click", async () => { if (await askForKey()) onChange(); });
}
