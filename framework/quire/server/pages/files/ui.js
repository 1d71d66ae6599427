// The page: its tabs, the state of the server, and the key.

const STATES = {
  ready: ["ready", "ready"], failing: ["bad", "every request fails"], stalled: ["bad", "a step hangs"],
  blocked: ["bad", "busy"], draining: ["busy", "shutting down"], dead: ["bad", "the engine is dead"], "not ready": ["busy", "no model is ready"],
  unknown: ["bad", "does not answer"],
};
const CHECK_MS = 5000;

function showState(state, cause = "") {
  const [kind, text] = STATES[state] ?? ["busy", state];
  byId("server-state").className = `state ${kind}`;
  byId("server-state").textContent = text;
  byId("server-state").title = cause;
}

/** Show what `/readyz` says, which needs no key. */
async function checkState() {
  try {
    const { status, cause } = await (await fetch("/readyz", { cache: "no-store" })).json();
    showState(status, cause);
    return status;
  } catch {
    showState("unknown");
    return "unknown";
  }
}

/** Read what needs the key. */
async function refresh() {
  try {
    await loadModels();
    byId("settings-error").textContent = "";
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401 && await askForKey(keys.get() ? "The server does not accept this key." : "This server needs a key.")) {
      await refresh();
      return;
    }
    byId("settings-error").textContent = error.message;
  }
  if (!byId("engine").hidden) enginePanel.start();
}

function setUpTabs(names) {
  const show = (name) => {
    for (const each of names) {
      const isShown = each === name, tab = byId(`tab-${each}`);
      byId(each).hidden = !isShown;
      tab.setAttribute("aria-selected", isShown);
      tab.tabIndex = isShown ? 0 : -1;
    }
    if (name === "engine") enginePanel.start(); else enginePanel.stop();
  };
  names.forEach((name, index) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => { location.hash = name; });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = names[(index + step + names.length) % names.length];
      location.hash = next;
      byId(`tab-${next}`).focus();
    });
  });
  const fromHash = () => show(names.includes(location.hash.slice(1)) ? location.hash.slice(1) : names[0]);
  addEventListener("hashchange", fromHash);
  addEventListener("visibilitychange", () => {
    if (document.hidden) enginePanel.stop(); else fromHash();
  });
  fromHash();
}

const enginePanel = new EnginePanel();
setUpSettings();
setUpKey(refresh);
new Chat();
setUpTabs(["chat", "engine"]);
let lastState = null;
const watch = async () => {
  const state = document.hidden ? lastState : await checkState();
  if (state === "ready" && lastState !== "ready") await refresh();
  lastState = state;
  setTimeout(watch, CHECK_MS);
};
watch();
