// The official `openai` package for Node: Chat Completions and Responses.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { add, base, box, hasNumbers, parameters, question, run, sum, told } from './common.mjs';

const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0 });
const greedy = { model: 'any', temperature: 0 };
const user = (content) => [{ role: 'user', content }];

async function chat() {
  const { completions } = client.chat;
  const whole = await completions.create({ ...greedy, messages: user(question) });
  let text = '';
  const chunks = await completions.create({ ...greedy, messages: user(question), stream: true });
  for await (const chunk of chunks) {
    text += chunk.choices[0]?.delta.content ?? '';
  }
  assert.equal(text, whole.choices[0].message.content);

  const tools = [{ type: 'function', function: { ...add, parameters } }];
  const tool_choice = { type: 'function', function: { name: 'add' } };
  const stream = completions.stream({ ...greedy, messages: user(sum), tools, tool_choice });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  const [call] = message.tool_calls;
  hasNumbers(JSON.parse(call.function.arguments));
  const result = { role: 'tool', tool_call_id: call.id, content: '1424' };
  const messages = [...user(sum), message, result];
  const answer = await completions.create({ ...greedy, messages, tools });
  assert.equal(answer.choices[0].message.content, told);

  const response_format = zodResponseFormat(box, 'box');
  const shaped = await completions.parse({ ...greedy, messages: user(question), response_format });
  box.parse(shaped.choices[0].message.parsed);
}

async function responses() {
  const whole = await client.responses.create({ ...greedy, input: question });
  const stream = client.responses.stream({ ...greedy, input: question });
  assert.equal((await stream.finalResponse()).output_text, whole.output_text);

  const tools = [{ type: 'function', ...add, parameters, strict: true }];
  const tool_choice = { type: 'function', name: 'add' };
  const asked = await client.responses.create({ ...greedy, input: sum, tools, tool_choice });
  const call = asked.output.at(-1);
  hasNumbers(JSON.parse(call.arguments));
  const result = { type: 'function_call_output', call_id: call.call_id, output: '1424' };
  const input = [...user(sum), ...asked.output, result];
  const instructions = 'Be brief.';
  const answer = await client.responses.create({ ...greedy, input, tools, instructions });
  assert.equal(answer.output_text, told);

  const text = { format: zodTextFormat(box, 'box') };
  const shaped = await client.responses.parse({ ...greedy, input: question, text });
  box.parse(shaped.output_parsed);
}

await run('openai', chat, responses);
