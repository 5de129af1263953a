// embed: out[r] = the decoded row of the table for the row's token. The table stays in the file's
// block order; `type` is the type's number (BlockType::number).
//
// Floor: a row of 5120 columns is 2.9 to 10 KB of the table from memory and 20 KB written: one
// memory latency. A thread decodes 4 columns, which share their scales. Launch: grid [rows,
// ceil(cols / 1024)], block 256, no shared memory. cols is a multiple of 32.
#include "table.cuh"

KERNEL(embed, 48, EmbedArgs, 256) {
  launch_dependents();
  const int row = blockIdx.x, col = (blockIdx.y * 256 + threadIdx.x) * 4;
  wait_for_inputs();
  if (col >= a.cols) return;
  float y[4];
  decode4(a.ty, a.table + (size_t)a.pass.tokens[row] * a.row_bytes, col, y);
  *(float4*)(a.out + (size_t)row * a.cols + col) = make_float4(y[0], y[1], y[2], y[3]);
}
