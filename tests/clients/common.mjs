// What the scripts of Node packages share; see common.py. The server's address is the first
// argument.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { z } from 'zod';

export const base = process.argv[2];
export const question = 'Write Python quicksort';
export const sum = 'Compute the sum of 947 and 477.';
export const told = '947 + 477 = 1424.';
export const add = { name: 'add', description: 'Add two integers.' };
const integer = { type: 'integer' };
export const parameters = {
  type: 'object',
  properties: { a: integer, b: integer },
  required: ['a', 'b'],
  additionalProperties: false,
};
export const box = z.object({
  kind: z.enum(['small', 'large']),
  lid: z.object({ colour: z.enum(['red', 'green', 'blue']), open: z.boolean() }),
});

export function hasNumbers(call) {
  assert(Number.isInteger(call.a) && Number.isInteger(call.b), JSON.stringify(call));
}

// The version of an installed package; its folder is where the first path to it leads.
function version(name) {
  const paths = createRequire(import.meta.url).resolve.paths(name);
  for (const path of paths) {
    try {
      return JSON.parse(readFileSync(`${path}/${name}/package.json`)).version;
    } catch { /* not in this folder */ }
  }
}

export async function run(name, ...checks) {
  const start = Date.now();
  for (const check of checks) await check();
  const took = Math.round((Date.now() - start) / 1000);
  console.log(`${name} ${version(name)} of Node is content after ${took} s`);
}
