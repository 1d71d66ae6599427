// The API description of this server, and forms to try its routes.

const FIRST = ["OpenAI", "Anthropic", "Ollama", "Tokens", "Live engine", "Health and metrics", "Control"];
const MAX_SHOWN = 200_000; // characters of a response

function fieldElement(name, schema, isRequired, document, seen) {
  const about = schema.description ? h("div", { className: "about soft" }, schema.description) : null;
  const nested = objectsIn(schema, document).filter((each) => !seen.includes(each.name));
  const inner = nested.map((each) => lazyDetails(
    each.name ?? "fields", () => fieldsElement(each.schema, document, [...seen, each.name])));
  return h("div", { className: "field" },
    h("div", {}, h("span", { className: "name" }, name), isRequired ? h("span", { className: "required" }, "required") : null),
    h("div", { className: "type" }, typeOf(schema, document)), about, inner);
}

/** Return a fold whose content is made when it is opened first. */
function lazyDetails(title, make) {
  const details = h("details", {}, h("summary", { className: "small soft" }, title));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(make()); });
  return details;
}

function fieldsElement(schema, document, seen = []) {
  const required = schema.required ?? [], names = Object.keys(schema.properties ?? {});
  names.sort((one, other) => required.includes(other) - required.includes(one));
  return h("div", { className: "fields" }, names.map((name) =>
    fieldElement(name, schema.properties[name], required.includes(name), document, seen)));
}

function schemaSections(title, schema, document) {
  return schema ? objectsIn(schema, document).map(({ schema: found, name }) =>
    h("section", {}, h("h3", {}, `${title}: ${name ?? "object"}`), fieldsElement(found, document, [name]))) : [];
}

function tryForm(method, path, operation, document) {
  const names = (operation.parameters ?? []).map((each) => each.name), inputs = {};
  const bodySchema = operation.requestBody?.content["application/json"].schema;
  const example = EXAMPLES[path] ?? (bodySchema && exampleOf(bodySchema, document));
  const body = bodySchema && h("textarea", { className: "code", rows: 8, spellcheck: false, value: JSON.stringify(example, null, 2), ariaLabel: "Body" });
  const output = h("pre", { hidden: true, tabIndex: 0, ariaLive: "polite" }), status = h("span", { className: "small soft number", role: "status" });
  const url = () => path.replace(/{(\w+)}/g, (_, name) => inputs[name].value.split("/").map(encodeURIComponent).join("/"));
  const button = h("button", { type: "submit", className: "primary" }, "Send");
  let abort = null;
  return h("form", {
    className: "try",
    onsubmit: async (event) => {
      event.preventDefault();
      if (abort) { abort.abort(); return; }
      abort = new AbortController();
      button.textContent = "Stop";
      await run(method, url(), body?.value, { output, status, signal: abort.signal });
      abort = null;
      button.textContent = "Send";
    },
  },
    h("h3", {}, "Try it"),
    names.map((name) => h("label", {}, name, inputs[name] = h("input", { className: "code", required: true }))), body,
    h("div", { className: "row" }, button,
      copyButton("Copy as curl", () => curlOf(method, url(), body?.value, { hasKey: keys.get() !== "" })), status),
    output);
}

async function run(method, url, body, { output, status, signal }) {
  const began = performance.now();
  output.hidden = false;
  output.textContent = "";
  status.textContent = "sending";
  try {
    const response = await send(url, { method, body, signal });
    const reader = response.body.getReader(), decoder = new TextDecoder();
    for (let text = ""; ;) {
      const { done, value } = await reader.read();
      if (done) break;
      text = (text + decoder.decode(value, { stream: true })).slice(0, MAX_SHOWN);
      output.textContent = text;
    }
    try { output.textContent = JSON.stringify(JSON.parse(output.textContent), null, 2); } catch { /* no JSON */ }
    status.textContent = `${response.status} after ${count(performance.now() - began)} ms`;
  } catch (error) {
    if (error.name === "AbortError") { status.textContent = "stopped"; return; }
    const wait = error.retryAfterS ? `; try again in ${Math.ceil(error.retryAfterS)} s` : "";
    status.textContent = error.status ? `${error.status}${wait}` : "no response";
    output.textContent = error.message ?? "The connection broke before the end.";
    if (error.status === 401) await askForKey(error.message);
  }
}

function routeElement({ id, method, path, operation }, document) {
  const make = () => {
    const content = operation.responses["200"].content;
    return h("div", {},
      operation.security ? null : h("p", { className: "small soft" }, "This route needs no key."),
      schemaSections("Body", operation.requestBody?.content["application/json"].schema, document),
      schemaSections("Response", content["application/json"]?.schema, document),
      schemaSections("Event of a stream", content["text/event-stream"]?.schema, document),
      tryForm(method, path, operation, document));
  };
  const details = h("details", { className: "route", id },
    h("summary", {}, h("span", { className: "method" }, method), h("span", { className: "path" }, path), h("span", { className: "soft small" }, operation.summary)));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(make()); });
  return details;
}

/** Return the routes of each family, the families in the order of `FIRST`. */
function familiesOf(document) {
  const families = new Map();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const name = operation.tags?.[0] ?? "Other", route = { id: operation.operationId, method: method.toUpperCase(), path, operation };
      families.set(name, [...(families.get(name) ?? []), route]);
    }
  }
  const order = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return [...families].sort(([one], [other]) => order(one) - order(other));
}

/** Return the words by which a route is found: its path, its summary, and the fields of its body. */
function wordsOf({ path, operation }, document) {
  const body = operation.requestBody?.content["application/json"].schema;
  const fields = body ? Object.keys(resolved(body, document).schema.properties ?? {}) : [];
  return [path, operation.summary, ...fields].join(" ").toLowerCase();
}

function openFromHash() {
  const route = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (!route) return;
  route.open = true;
  route.scrollIntoView();
}

function show(apiDocument) {
  byId("version").textContent = `API, version ${apiDocument.info.version}`;
  const found = familiesOf(apiDocument).map(([name, routes]) => {
    const elements = routes.map((route) => ({
      words: wordsOf(route, apiDocument),
      element: routeElement(route, apiDocument),
      link: h("li", {}, h("a", { href: `#${route.id}`, onclick: () => setTimeout(openFromHash) }, `${route.method} ${route.path}`)),
    }));
    const section = h("section", {}, h("h2", { className: "family" }, name), elements.map((each) => each.element));
    const links = h("div", {}, h("h2", {}, name), h("ul", {}, elements.map((each) => each.link)));
    return { elements, section, links };
  });
  byId("routes").replaceChildren(...found.map((each) => each.section));
  byId("contents").replaceChildren(...found.map((each) => each.links));
  byId("filter").addEventListener("input", () => {
    const text = byId("filter").value.trim().toLowerCase();
    for (const { elements, section, links } of found) {
      elements.forEach(({ words, element, link }) => { element.hidden = link.hidden = !words.includes(text); });
      section.hidden = links.hidden = elements.every(({ element }) => element.hidden);
    }
  });
  openFromHash();
}

async function load() {
  byId("routes").replaceChildren(h("p", { className: "soft loading" }, "Reading the API description."));
  try {
    show(await getJson("/openapi.json"));
  } catch (error) {
    const again = h("button", { type: "button", onclick: load }, "Try again");
    byId("routes").replaceChildren(h("div", { className: "notice error" }, h("span", {}, error.message), again));
    if (error.status === 401 && await askForKey(error.message)) await load();
  }
}

byId("document").addEventListener("click", async (event) => {
  if (!keys.get()) return; // the browser itself can open it
  event.preventDefault();
  const text = await (await send("/openapi.json")).text();
  open(URL.createObjectURL(new Blob([text], { type: "application/json" })));
});
addEventListener("hashchange", openFromHash);
setUpKey(load);
load();
