// Talking to the server: one streamed chat, and what to do when it fails.

/**
 * A failure: what it is called here, what the server said, and the seconds after which to try
 * again.
 */
export class Problem extends Error {
  constructor(kind, message, after) {
    super(message);
    this.kind = kind;
    this.after = after;
  }
}

/** The key is kept for this tab only, and for this page only where a browser keeps nothing. */
let held = "";
export const key = {
  get: () => {
    try {
      return sessionStorage.getItem("key") ?? held;
    } catch {
      return held;
    }
  },
  set: (key) => {
    held = key;
    try {
      sessionStorage.setItem("key", key);
    } catch {
      // It is held.
    }
  },
};

function headers() {
  const bearer = key.get() ? { authorization: `Bearer ${key.get()}` } : {};
  return { "content-type": "application/json", ...bearer };
}

async function get(path, options) {
  try {
    return await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("offline", "The server does not answer.");
  }
}

/** What a response that is not 200 means. */
async function problemOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Somebody between us and the server speaks.
  }
  const message = error.message ?? `The server answered ${response.status}.`;
  if (response.status === 401) return new Problem("key", message);
  // To ask again would not help.
  if (["model_not_loaded", "out_of_memory"].includes(error.code))
    return new Problem("failed", message);
  if (response.status === 429 || response.status === 503) {
    return new Problem("busy", message, Number(response.headers.get("retry-after")) || 2);
  }
  if (error.code === "context_length_exceeded") return new Problem("full", message);
  if (response.status >= 502) return new Problem("offline", message);
  return new Problem(response.status >= 500 ? "failed" : "refused", message);
}

/** The chunks of an answer, as they come. */
export async function* ask(body, signal) {
  const whole = { ...body, stream: true, stream_options: { include_usage: true } };
  whole.forerun = { origins: true, progress: true };
  const options = { method: "POST", body: JSON.stringify(whole), signal };
  const response = await get("v1/chat/completions", options);
  if (!response.ok) throw await problemOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const next = () =>
    reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Problem("lost", "The connection to the server was lost.");
    });
  for (let held = ""; ;) {
    const { value, done } = await next();
    if (done) throw new Problem("lost", "The server ended the answer too soon.");
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error)
        throw new Problem(
          chunk.error.code === "shutting_down" ? "busy" : "failed",
          chunk.error.message,
          2,
        );
      yield chunk;
    }
  }
}

/** The models that can be asked, as `/v1/models` tells them. */
export async function findModels() {
  const response = await get("v1/models");
  if (!response.ok) throw await problemOf(response);
  return (await response.json()).data;
}

/** Whether the server is there. */
export async function isThere() {
  try {
    return (await get("health")).ok;
  } catch {
    return false;
  }
}
