// The fields beside the chat, as fields of a request.

const EXAMPLE_TOOLS = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];
const EXAMPLES = {
  json_schema: JSON.stringify(
    { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"] }, null, 2),
  regex: "(yes|no)",
};

class SettingsError extends Error {}

function parsed(id, what) {
  const text = byId(id).value.trim();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingsError(`${what} is not valid JSON: ${error.message}`);
  }
}

function formatFields() {
  const kind = byId("format").value, text = byId("grammar").value.trim();
  if (!kind) return {};
  if (!text) throw new SettingsError("Structured output needs a schema or an expression.");
  if (kind === "regex") return { structured_outputs: { regex: text } };
  const schema = parsed("grammar", "The schema");
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
}

/** Return the body of a request for the next message.
 *  @throws {SettingsError} A field cannot be read. */
function requestBody(messages) {
  const body = { model: byId("model").value || undefined, messages: [], stream: true, stream_options: { include_usage: true } };
  const system = byId("system").value.trim();
  if (system) body.messages.push({ role: "system", content: system });
  body.messages.push(...messages);
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const input = byId(name);
    if (!input.validity.valid) throw new SettingsError(`${name}: ${input.validationMessage}`);
    if (input.value !== "") body[name] = Number(input.value);
  }
  Object.assign(body, formatFields());
  const tools = parsed("tools", "The list of tools");
  if (tools) {
    body.tools = Array.isArray(tools) ? tools : [tools];
    body.tool_choice = byId("tool_choice").value;
  }
  return body;
}

async function loadModels() {
  const { data } = await getJson("/v1/models"), select = byId("model"), chosen = select.value;
  select.replaceChildren(...data.map(({ id, parent }) =>
    h("option", { value: id, selected: id === chosen }, parent ? `${id} (adapter of ${parent})` : id)));
}

function showGrammar() {
  const kind = byId("format").value, grammar = byId("grammar");
  byId("grammar-field").hidden = !kind;
  byId("grammar-label").textContent = kind === "regex" ? "Regular expression" : "JSON schema";
  if (kind && (!grammar.value.trim() || Object.values(EXAMPLES).includes(grammar.value))) grammar.value = EXAMPLES[kind];
}

function setUpSettings() {
  byId("settings").open = matchMedia("(min-width: 821px)").matches;
  byId("format").addEventListener("change", showGrammar);
  byId("example-tool").addEventListener("click", () => { byId("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 2); });
}
