// JSON schemas of the API description, in words and as examples.

/** Return what a schema refers to, and the name of it. */
function resolved(schema, document) {
  const name = schema.$ref?.split("/").at(-1);
  return name ? { schema: document.components.schemas[name] ?? {}, name } : { schema, name: null };
}

/** Return the type of a schema, as one would write it. */
function typeOf(schema, document) {
  const { schema: found, name } = resolved(schema, document);
  if (name) return name;
  const choices = found.anyOf ?? found.oneOf;
  if (choices) return [...new Set(choices.map((each) => typeOf(each, document)))].join(" | ");
  if (found.enum) return found.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.type === "array") return `${found.items ? typeOf(found.items, document) : "any"}[]`;
  if (found.type === "object" && typeof found.additionalProperties === "object") {
    return `{[name]: ${typeOf(found.additionalProperties, document)}}`;
  }
  return [found.type ?? "any"].flat().join(" | ") + boundsOf(found);
}

function boundsOf(schema) {
  const low = schema.minimum ?? schema.exclusiveMinimum, high = schema.maximum ?? schema.exclusiveMaximum;
  if (low === undefined && high === undefined) return "";
  return ` (${low ?? ""}..${high ?? ""})`;
}

/** Return the schemas of objects that a value of a schema can have in it. */
function objectsIn(schema, document) {
  const { schema: found, name } = resolved(schema, document);
  if (found.properties) return [{ schema: found, name }];
  const parts = [...(found.anyOf ?? found.oneOf ?? []), ...(found.items ? [found.items] : [])];
  return parts.flatMap((each) => objectsIn(each, document));
}

const EXAMPLES = {
  "/v1/chat/completions": { messages: [{ role: "user", content: "What is a KV cache?" }], max_tokens: 64 },
  "/v1/completions": { prompt: "Once upon a time", max_tokens: 32 },
  "/v1/messages": { model: "", max_tokens: 64, messages: [{ role: "user", content: "What is a KV cache?" }] },
  "/v1/responses": { input: "What is a KV cache?", max_output_tokens: 64 },
};

/** Return a value that a schema takes: its required fields only. */
function exampleOf(schema, document, depth = 0) {
  const { schema: found } = resolved(schema, document);
  if (found.default !== undefined && found.default !== null) return found.default;
  if (found.enum) return found.enum[0];
  if (found.const !== undefined) return found.const;
  if (found.anyOf ?? found.oneOf) return exampleOf((found.anyOf ?? found.oneOf)[0], document, depth);
  if (found.properties && depth < 5) {
    const names = found.required ?? [];
    return Object.fromEntries(names.map((name) => [name, exampleOf(found.properties[name], document, depth + 1)]));
  }
  if (found.type === "array") return depth < 5 && found.items ? [exampleOf(found.items, document, depth + 1)] : [];
  return { string: "", integer: 1, number: 1, boolean: false, object: {} }[[found.type].flat()[0]] ?? null;
}
