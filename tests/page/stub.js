// Stands in for the server's chats, where a test needs an answer that no tiny model writes.
// `stub.next` makes the next responses; without it the server answers.
window.stub = { bodies: [], next: null };
{
  const real = window.fetch;
  window.fetch = (url, options = {}) => {
    if (!String(url).endsWith("chat/completions")) return real(url, options);
    stub.bodies.push(JSON.parse(options.body));
    return stub.next ? stub.next(options) : real(url, options);
  };

  const chunk = (delta, forerun) => ({
    choices: [{ index: 0, delta, finish_reason: null }],
    forerun,
  });

  /** Pieces of a text, as tokens are. */
  const pieces = (text) => text.match(/\s*\S{1,6}|\s+/g) ?? [];

  /** Chunks of an answer in rounds of up to seven drafted tokens. */
  const chunksOf = (text, thought) => {
    const tokens = [
      ...pieces(thought).map((piece) => ({ reasoning_content: piece })),
      ...pieces(text).map((piece) => ({ content: piece })),
    ];
    const chunks = [];
    let left = 0;
    tokens.forEach((delta, i) => {
      const begins = i > 0 && left === 0;
      const stood = [7, 3, 5, 0, 6, 2, 7, 4, 1][i % 9];
      if (begins) left = stood + 1;
      const forerun = { drafted: left > 1 };
      if (begins) forerun.round = { drafted: 7 };
      left = Math.max(left - 1, 0);
      chunks.push(chunk(delta, forerun));
    });
    return chunks;
  };

  /** Answers with `text`; of `hold` tokens only where that is said, and then never ends. */
  stub.say = (text, { thought = "", progress, hold, finish = "stop" } = {}) => {
    stub.next = ({ signal }) => {
      const told = progress ? [{ choices: [], forerun: { progress } }] : [];
      const report = {
        spec: { mean_accept_length: 4.5 },
        timing: { tokens_per_s: 142.4 },
        seed: 7,
      };
      const usage = {
        completion_tokens: 60,
        prompt_tokens: 318,
        prompt_tokens_details: { cached_tokens: 280 },
      };
      const end = { choices: [{ index: 0, delta: {}, finish_reason: finish }], forerun: report };
      let all = [...told, ...chunksOf(text, thought), end, { choices: [], usage }];
      if (hold !== undefined) all = all.slice(0, told.length + hold);
      let at = 0;
      const bytes = new TextEncoder();
      const body = new ReadableStream({
        start: (to) =>
          signal.addEventListener("abort", () => to.error(new DOMException("", "AbortError"))),
        async pull(to) {
          if (at === all.length && hold !== undefined) return new Promise(() => {});
          await new Promise((resolve) => setTimeout(resolve));
          const some = all.slice(at, at + 20).map((one) => `data: ${JSON.stringify(one)}\n\n`);
          at += some.length;
          if (some.length > 0) return to.enqueue(bytes.encode(some.join("")));
          to.enqueue(bytes.encode("data: [DONE]\n\n"));
          to.close();
        },
      });
      return Promise.resolve(
        new Response(body, { headers: { "content-type": "text/event-stream" } }),
      );
    };
  };

  /** Answers with an error. */
  stub.fail = (status, error, headers = {}) => {
    stub.next = () => Promise.resolve(new Response(JSON.stringify({ error }), { status, headers }));
  };
}
