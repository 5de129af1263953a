// What comes before and after deltanet and deltanet_prompt (deltanet.cuh has the whole):
//
// deltanet_products  gates [rows][value_heads], and products [rows][key_heads][key,
// query][TAPE_TOKENS] of each row's
//                    key and query with the keys since its anchor, its own last.
//                    Grid (key_heads, blocks of rows), 128 threads, no shared memory; block y takes
//                    rows / gridDim.y
//                    (rounded up) rows. Floor: a row's keys, 16 KB a head; limited by three
//                    dependent loads. deltanet_gate      norm and gate of out. Grid (value_heads /
//                    8 rounded up, rows), 128 threads.
#include "deltanet.cuh"

KERNEL(deltanet_products, 128, DeltaNetArgs, 128) {
  launch_dependents();
  // Eight lanes share a key; a warp has 16 entries of the list.
  constexpr int CHUNKS = MAX_DIM / 32, ENTRIES = 4;
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7;
  const int head = blockIdx.x, width = l.key_heads * l.dim;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  wait_for_inputs();
  const int rows_per = (a.pass.rows + gridDim.y - 1) / gridDim.y;
  const int end = min(a.pass.rows, (int)(blockIdx.y + 1) * rows_per);
  const int first = warp * 4 * ENTRIES + lane / 8;
  // Lists are read a row ahead. What lies behind a list's end is not used.
  int count = 0, taps[ENTRIES] = {};
  const auto read_list = [&](int row) {
    count = a.pass.recent_count[row];
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) taps[j] = a.pass.recent[row * TAPE_TOKENS + first + 4 * j];
  };
  if ((int)blockIdx.y * rows_per < end) read_list(blockIdx.y * rows_per);
  for (int row = blockIdx.y * rows_per; row < end; row++) {
    const int value_head = head + threadIdx.x * l.key_heads;
    if (value_head < l.value_heads)
      a.gates[row * l.value_heads + value_head] = gate_of(a, row, value_head);
    const int listed = count;
    const float* tape =
        a.pass.sequences[a.pass.sequence_of[row]].tape + (size_t)a.layer * l.tape_layer;
    const float* from[ENTRIES];
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
      const int tap = first + 4 * j < listed ? taps[j] : row;
      from[j] = tap >= 0 ? a.keys + (size_t)tap * width : tape + (-2 - tap) % TAPE_TOKENS * width;
      from[j] += head * l.dim + 4 * part;
    }
    if (row + 1 < end) read_list(row + 1);
    if (warp * 4 * ENTRIES > listed) continue;
    float4 keys[ENTRIES][CHUNKS], key[CHUNKS], query[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const size_t at = (size_t)row * width + head * l.dim + 4 * part + 32 * c;
      key[c] = query[c] = zero;
      if (32 * c < l.dim)
        key[c] = *(const float4*)(a.keys + at), query[c] = *(const float4*)(a.q + at);
#pragma unroll
      for (int j = 0; j < ENTRIES; j++) {
        keys[j][c] = zero;
        if (32 * c < l.dim) keys[j][c] = *(const float4*)(from[j] + 32 * c);
      }
    }
    float* out = a.products + ((size_t)row * l.key_heads + head) * 2 * TAPE_TOKENS;
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
      float2 dot = make_float2(0.f, 0.f);
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) dot4(dot, keys[j][c], key[c], query[c]);
#pragma unroll
      for (int step = 4; step > 0; step /= 2) {
        dot.x = __fadd_rn(dot.x, __shfl_xor_sync(ALL_LANES, dot.x, step));
        dot.y = __fadd_rn(dot.y, __shfl_xor_sync(ALL_LANES, dot.y, step));
      }
      if (part == 0 && first + 4 * j <= listed) {
        out[first + 4 * j] = dot.x;
        out[TAPE_TOKENS + first + 4 * j] = dot.y;
      }
    }
  }
}

KERNEL(deltanet_gate, 64, DeltaNetArgs, 128) {
  launch_dependents();
  const RecurrentLayout& l = a.layout;
  // Sixteen lanes have a head, eight columns each.
  const int part = threadIdx.x & 15, head = blockIdx.x * 8 + threadIdx.x / 16, row = blockIdx.y;
  const bool active = head < l.value_heads && 8 * part < l.dim;
  const int column = head * l.dim + 8 * part;
  float norm[8] = {}, o[8] = {}, z[8] = {};
  if (active) {
    *(float4*)norm = *(const float4*)(a.norm + 8 * part);
    *(float4*)(norm + 4) = *(const float4*)(a.norm + 8 * part + 4);
  }
  wait_for_inputs();
  if (active) {
    const size_t at = (size_t)row * l.value_heads * l.dim + column;
    *(float4*)o = *(const float4*)(a.out.numbers + at);
    *(float4*)(o + 4) = *(const float4*)(a.out.numbers + at + 4);
    *(float4*)z = *(const float4*)(a.z + at);
    *(float4*)(z + 4) = *(const float4*)(a.z + at + 4);
  }
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = __fmaf_rn(o[i], o[i], squares);
#pragma unroll
  for (int step = 8; step > 0; step /= 2)
    squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
  const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = o[i] * factor * norm[i] * (z[i] * sigmoid(z[i]));
  if (active) store8(a.out, row, column, y);
}
