// The Vercel AI SDK over Responses, as `@ai-sdk/openai` asks by itself, and over Chat Completions.
import assert from 'node:assert/strict';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { z } from 'zod';
import { base, box, question, run, sum, told } from './common.mjs';

const openai = createOpenAI({ baseURL: base + '/v1', apiKey: 'none' });
const integers = z.object({ a: z.number().int(), b: z.number().int() });

async function check(model) {
  const settings = { model, temperature: 0, maxRetries: 0, maxOutputTokens: 300 };
  const whole = await generateText({ ...settings, prompt: question });
  const failed = [];
  const onError = ({ error }) => failed.push(error);
  const stream = streamText({ ...settings, prompt: question, onError });
  let text = '';
  for await (const piece of stream.textStream) text += piece;
  assert.deepEqual(failed, []);
  assert.equal(text, whole.text);

  const calls = [];
  const add = tool({
    description: 'Add two integers.',
    inputSchema: integers,
    execute: async ({ a, b }) => { calls.push({ a, b }); return String(a + b); },
  });
  // The first step has to call; what comes then is the model's choice.
  const answer = await generateText({
    ...settings, prompt: sum, tools: { add }, stopWhen: stepCountIs(3),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'auto' }),
  });
  assert.deepEqual(calls, [{ a: 947, b: 477 }]);
  assert.equal(answer.text, told);

  const output = Output.object({ schema: box });
  const shaped = await generateText({ ...settings, prompt: question, output });
  box.parse(shaped.output);
}

const responses = () => check(openai('any'));
const chat = () => check(openai.chat('any'));
await run('@ai-sdk/openai', responses, chat);
