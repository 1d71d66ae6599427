// Requests as curl commands for a POSIX shell.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Return a command that sends a request; the key is a variable, so that it can be shared. */
function curlOf(method, path, body, { hasKey = false, isStream = false } = {}) {
  const parts = [isStream ? "curl -N" : "curl"];
  if (method !== "GET" && !(method === "POST" && body !== undefined)) parts.push(`-X ${method}`);
  parts[0] += ` ${quoted(location.origin + path)}`;
  if (hasKey) parts.push('-H "Authorization: Bearer $QUIRE_API_KEY"');
  if (body !== undefined) {
    parts.push("-H 'Content-Type: application/json'", `-d ${quoted(body)}`);
  }
  return parts.join(" \\\n  ");
}
