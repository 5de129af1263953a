// angles: out[r] = [cos(p f_0), cos(p f_1), ..., sin(p f_0), ...] * magnitude for the row's
// position p.
//
// The frequencies travel with the launch, so nothing has to be uploaded for them. The angle is
// rounded to f32 as in the models' own code; its sine and cosine are taken in double, because
// positions reach 262144. A row is 256 bytes: the launch is the cost. Launch: grid [rows], block
// ceil(pairs / 32) * 32, no shared memory.
#include "forerun.cuh"

constexpr int MAX_PAIRS = 128;

struct RotaryArgs {
  const int* positions;  // [rows]
  float* out;            // [rows][2 * pairs]
  int pairs;
  float magnitude;
  float frequencies[MAX_PAIRS];
};

KERNEL(angles, 48, RotaryArgs, MAX_PAIRS) {
  launch_dependents();
  const int row = blockIdx.x, pair = threadIdx.x;
  wait_for_inputs();
  if (pair >= a.pairs) return;
  const float angle = (float)a.positions[row] * a.frequencies[pair];
  double sine, cosine;
  sincos((double)angle, &sine, &cosine);
  float* out = a.out + (size_t)row * 2 * a.pairs;
  out[pair] = (float)cosine * a.magnitude;
  out[a.pairs + pair] = (float)sine * a.magnitude;
}
