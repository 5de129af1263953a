// The official `@anthropic-ai/sdk` package: Messages.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';
import { add, base, box, hasNumbers, parameters, question, run, sum, told } from './common.mjs';

const { beta, messages } = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0 });
const greedy = { model: 'any', temperature: 0, max_tokens: 300 };
const user = (content) => [{ role: 'user', content }];

async function chat() {
  const whole = await messages.create({ ...greedy, messages: user(question) });
  const stream = messages.stream({ ...greedy, messages: user(question) });
  assert.equal(await stream.finalText(), whole.content[0].text);
}

async function tools() {
  const tools = [{ ...add, input_schema: parameters }];
  const tool_choice = { type: 'tool', name: 'add' };
  const stream = messages.stream({ ...greedy, messages: user(sum), tools, tool_choice });
  const asked = await stream.finalMessage();
  const call = asked.content.at(-1);
  hasNumbers(call.input);
  const result = { type: 'tool_result', tool_use_id: call.id, content: '1424' };
  const turns = [...user(sum), { role: 'assistant', content: asked.content }, ...user([result])];
  const answer = await messages.create({ ...greedy, messages: turns, tools });
  assert.equal(answer.content.at(-1).type, 'text');
}

async function shapes() {
  const output_config = { format: zodOutputFormat(box) };
  const shaped = await messages.parse({ ...greedy, messages: user(question), output_config });
  box.parse(shaped.parsed_output);
}

// The package's own loop, which asks for a conversation that the server keeps and has to be told
// in its words that there is none.
async function toolRunner() {
  const calls = [];
  const inputSchema = z.object({ a: z.number().int(), b: z.number().int() });
  const sumUp = ({ a, b }) => { calls.push({ a, b }); return String(a + b); };
  const tools = [betaZodTool({ ...add, inputSchema, run: sumUp })];
  const thinking = { type: 'enabled', budget_tokens: 1024 };
  const runner = beta.messages.toolRunner({ ...greedy, messages: user(sum), tools, thinking });
  const answer = await runner;
  assert.deepEqual(calls, [{ a: 947, b: 477 }]);
  assert.equal(answer.content.at(-1).text, told);
}

await run('@anthropic-ai/sdk', chat, tools, shapes, toolRunner);
