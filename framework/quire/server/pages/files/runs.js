// The map of the KV blocks: pairs of a code and a number of cells. See /v1/engine in /docs.

const HOLDER = { NULL: 0, FREE: 1, HELD: 2, SHARED: 3, FIRST_OWNER: 4 };

/** Return the code of each cell. */
function cellsOf(runs) {
  let length = 0;
  for (let index = 1; index < runs.length; index += 2) length += runs[index];
  const cells = new Uint16Array(length);
  for (let index = 0, begin = 0; index < runs.length; index += 2) {
    cells.fill(runs[index], begin, begin += runs[index + 1]);
  }
  return cells;
}

/** Return how many blocks are of each kind, and how many requests hold some. */
function countsOf({ runs, blocks_per_cell: width }) {
  const counts = { owned: 0, shared: 0, held: 0, cached: 0, free: 0 }, owners = new Set();
  for (let index = 0; index < runs.length; index += 2) {
    const holder = runs[index] >> 1, blocks = runs[index + 1] * width;
    if (holder >= HOLDER.FIRST_OWNER) { counts.owned += blocks; owners.add(holder); }
    else if (holder === HOLDER.SHARED) counts.shared += blocks;
    else if (holder === HOLDER.HELD) counts.held += blocks;
    else if (holder === HOLDER.FREE) counts[runs[index] & 1 ? "cached" : "free"] += blocks;
  }
  return { ...counts, owners: owners.size };
}

/** Return what a code says, in words. */
function wordsOf(code) {
  const holder = code >> 1, cached = code & 1 ? ", in the prefix cache" : "";
  if (holder === HOLDER.NULL) return "null block, for padding";
  if (holder === HOLDER.FREE) return code & 1 ? "no request, in the prefix cache" : "free";
  if (holder === HOLDER.HELD) return `a transfer, or a request that has just ended${cached}`;
  if (holder === HOLDER.SHARED) return `several requests${cached}`;
  return `request ${holder - HOLDER.FIRST_OWNER + 1}${cached}`;
}
