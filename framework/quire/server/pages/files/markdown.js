// A small part of Markdown, as elements: code, headings, lists, rules, bold, italics. No links and
// no HTML, so that a model's text can only ever be seen.

/** Return the blocks of a text: {kind, text | items, language, level}. */
function blocksOf(text) {
  const blocks = [], lines = text.split("\n");
  let paragraph = [], list = null;
  const flush = () => {
    if (paragraph.length) blocks.push({ kind: "paragraph", text: paragraph.join("\n") });
    paragraph = [];
    list = null;
  };
  for (let index = 0; index < lines.length; index++) {
    const line = lines[index];
    const fence = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    if (fence) {
      flush();
      const code = [];
      while (++index < lines.length && !lines[index].trim().startsWith(fence[1])) code.push(lines[index]);
      blocks.push({ kind: "code", text: code.join("\n"), language: fence[2] });
      continue;
    }
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    const item = /^\s*(?:[-*+]|(\d{1,4})[.)])\s+(.*)/.exec(line);
    if (heading) {
      flush();
      blocks.push({ kind: "heading", level: heading[1].length, text: heading[2] });
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      blocks.push({ kind: "rule" });
    } else if (item) {
      const kind = item[1] ? "numbers" : "bullets";
      if (list?.kind !== kind) {
        flush();
        list = { kind, start: Number(item[1] ?? 1), items: [] };
        blocks.push(list);
      }
      list.items.push(item[2]);
    } else if (!line.trim()) {
      flush();
    } else if (list && /^\s{2,}/.test(line)) {
      list.items[list.items.length - 1] += `\n${line.trim()}`;
    } else {
      if (list) flush();
      paragraph.push(line);
    }
  }
  flush();
  return blocks;
}

/** Return the spans of a line: {kind: "text" | "code" | "strong" | "em", text}. */
function spansOf(text) {
  const spans = [], pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    if (found.index > end) spans.push({ kind: "text", text: text.slice(end, found.index) });
    const kind = found[1] !== undefined ? "code" : found[2] !== undefined ? "strong" : "em";
    spans.push({ kind, text: found[1] ?? found[2] ?? found[3] });
    end = found.index + found[0].length;
  }
  if (end < text.length) spans.push({ kind: "text", text: text.slice(end) });
  return spans;
}

const inline = (text) => spansOf(text).map((span) => (span.kind === "text" ? span.text : h(span.kind, {}, span.text)));

function elementOf(block) {
  switch (block.kind) {
    case "code":
      return h("div", { className: "code-block" },
        h("div", { className: "code-head small soft" }, h("span", {}, block.language || "text"), copyButton("Copy", () => block.text)),
        h("pre", { tabIndex: 0 }, h("code", {}, block.text)));
    case "heading": return h(`h${Math.min(6, block.level + 2)}`, {}, inline(block.text));
    case "rule": return h("hr");
    case "bullets": return h("ul", {}, block.items.map((item) => h("li", {}, inline(item))));
    case "numbers": return h("ol", { start: block.start }, block.items.map((item) => h("li", {}, inline(item))));
    default: return h("p", {}, inline(block.text));
  }
}

/** Show a text in an element; blocks that have not changed since the last call stay as they are. */
function showMarkdown(element, text) {
  const blocks = blocksOf(text), old = element.blocks ?? [];
  blocks.forEach((block, index) => {
    const key = JSON.stringify(block);
    if (old[index] === key) return;
    const made = elementOf(block);
    if (element.children[index]) element.children[index].replaceWith(made);
    else element.append(made);
    old[index] = key;
  });
  while (element.children.length > blocks.length) element.lastChild.remove();
  element.blocks = old.slice(0, blocks.length);
}
