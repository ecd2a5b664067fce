// Drawing tokens, a block a row, with the CPU's rule and random numbers (ref/sample.c): min-p, then temperature, top-k,
// top-p. Before it, adjusting the logits, one thread per id. Sums of weights are in double, in a fixed order that is
// not the CPU's: the two may choose differently if a number is within rounding of a boundary.
//
// A cut is found four bits at a time: the largest key such that all keys from it up reach the target, 8 passes over the
// logits, which weigh only those that begin as the key does. A key is a logit's bits, changed so that unsigned
// comparison gives the same order.
#include "backends/cuda/launch.cuh"

extern "C" {
#include "base/rng.h"
#include "ops/sample.h"
}

enum { SAMPLE_THREADS = 512, DIGITS = 16 };

static __device__ __forceinline__ uint32_t sample_key(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What is kept: keys above `key`, and the first `ties` (by id) of the keys equal to it.
struct sample_cut {
  uint32_t key;
  int64_t ties;
};
struct sample_state {
  const float *logits;
  int64_t V, first, end; // the range of ids of this thread
  double top, temperature;
  sample_cut kept;
  int64_t ties_before; // ids with the cut's key before this thread's range
};

static __device__ __forceinline__ double sample_weight(const sample_state &s, float x) {
  return exp(((double)x - s.top) / s.temperature);
}
static __device__ __forceinline__ bool sample_is_kept(const sample_state &s, uint32_t key, int64_t *ties) {
  if (key != s.kept.key) return key > s.kept.key;
  return (*ties)++ < s.kept.ties;
}

// use(id, logit) for each of this thread's run, whose first is a multiple of 4, in order.
template <class USE> static __device__ __forceinline__ void sample_walk(const sample_state &s, USE use) {
  int64_t v = s.first;
  if ((uintptr_t)s.logits % 16 == 0)
    for (; v + 4 <= s.end; v += 4) {
      const float4 x = *reinterpret_cast<const float4 *>(s.logits + v);
      use(v, x.x), use(v + 1, x.y), use(v + 2, x.z), use(v + 3, x.w);
    }
  for (; v < s.end; v++) use(v, s.logits[v]);
}

// How many there are in the runs before this thread's.
static __device__ int64_t sample_before(int64_t mine) {
  WN_SHARED(int64_t, runs, [SAMPLE_THREADS]);
  __syncthreads();
  runs[threadIdx.x] = mine;
  __syncthreads();
  int64_t before = 0;
  for (int i = 0; i < (int)threadIdx.x; i++) before += runs[i];
  return before;
}
static __device__ void sample_set_cut(sample_state &s, sample_cut cut) {
  int64_t equal = 0;
  s.kept = cut;
  sample_walk(s, [&](int64_t, float x) { equal += sample_key(x) == cut.key; });
  s.ties_before = sample_before(equal);
}

// The weight of what is kept.
static __device__ double sample_total(const sample_state &s) {
  int64_t ties = s.ties_before;
  double sum = 0;
  sample_walk(s, [&](int64_t, float x) {
    if (sample_is_kept(s, sample_key(x), &ties)) sum += sample_weight(s, x);
  });
  return wn_block_sum(sum);
}

// The smallest set of largest logits within what is kept whose weights (1 each when counting) reach `target`.
static __device__ void sample_narrow(sample_state &s, bool counting, double target) {
  uint32_t key = 0;
  double above = 0; // the weight of larger keys
  for (int shift = 28; shift >= 0; shift -= 4) {
    int64_t ties = s.ties_before;
    double sums[DIGITS] = {};
    sample_walk(s, [&](int64_t, float x) {
      const uint32_t own = sample_key(x);
      if (!sample_is_kept(s, own, &ties) || ((own ^ key) >> shift) >= DIGITS) return;
      const double weight = counting ? 1.0 : sample_weight(s, x);
      const uint32_t digit = own >> shift & (DIGITS - 1);
#pragma unroll
      for (uint32_t d = 0; d < DIGITS; d++) sums[d] += d == digit ? weight : 0;
    });
    uint32_t found = 0;
    double before = above; // of the digits above the one that reaches it; should rounding leave a rest, of all but 0
#pragma unroll
    for (uint32_t d = DIGITS; d-- > 0;) {
      sums[d] = wn_block_sum(sums[d]);
      if (found || d == 0) continue;
      if (before + sums[d] >= target)
        found = d;
      else
        before += sums[d];
    }
    key |= found << shift, above = before;
  }
  int64_t equal = 0, ties = s.ties_before;
  sample_walk(s, [&](int64_t, float x) { equal += sample_key(x) == key && sample_is_kept(s, key, &ties); });
  const int64_t all = wn_block_sum(equal);
  const float value = __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
  const double each = counting ? 1.0 : sample_weight(s, value);
  double wanted = ceil((target - above) / each);
  if (!(wanted >= 1)) wanted = 1;
  if (all > 0) sample_set_cut(s, {key, wanted < (double)all ? (int64_t)wanted : all});
}

struct sample_rule {
  const float *logits;
  int64_t V, top_k;
  double temperature, top_p;
  float min_p_log;
  bool min_p, log_probability;
  uint64_t seed, step;
};
struct sample_rules { // an argument has at most 4 KiB
  sample_rule row[WN_SAMPLE_ROWS];
};

// Of the chosen token, once all threads know it.
static __device__ void sample_log_probability(const sample_state &s, wn_drawn *drawn) {
  double sum = 0;
  sample_walk(s, [&](int64_t, float x) { sum += exp((double)x - s.top); });
  sum = wn_block_sum(sum);
  if (threadIdx.x == 0) drawn->log_probability = (double)s.logits[drawn->token] - s.top - log(sum);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(const __grid_constant__ sample_rules rules, wn_drawn *all) {
  WN_SHARED(float, tops, [SAMPLE_THREADS]);
  WN_SHARED(int64_t, ids, [SAMPLE_THREADS]);
  WN_SHARED(double, runs, [SAMPLE_THREADS]);
  WN_SHARED(int, chosen, [2]);
  const sample_rule &rule = rules.row[blockIdx.x];
  const int64_t V = rule.V;
  wn_drawn *const drawn = all + blockIdx.x;
  const int t = threadIdx.x;
  const int64_t each = ((V + SAMPLE_THREADS - 1) / SAMPLE_THREADS + 3) / 4 * 4;
  sample_state s;
  s.logits = rule.logits, s.V = V, s.first = min(V, each * t), s.end = min(V, each * (t + 1));
  s.temperature = rule.temperature;
  float top = -INFINITY;
  int64_t best = V, wrong = V;
  sample_walk(s, [&](int64_t v, float x) {
    if (!(x < INFINITY)) wrong = min(wrong, v);
    if (best == V || x > top) top = x, best = v;
  });
  tops[t] = wrong < V ? INFINITY : top, ids[t] = wrong < V ? wrong : best;
  __syncthreads();
  for (int i = 0; i < SAMPLE_THREADS; i++) // ranges of ids are in order: ties go to the lowest id, and so does the
                                           // report of a bad logit
    if (i == 0 || tops[i] > top) top = tops[i], best = ids[i];
  const int bad = top == INFINITY ? 1 : top == -INFINITY ? 2 : 0;
  if (t == 0) drawn->bad = bad, drawn->token = bad == 2 ? 0 : (int32_t)best, drawn->log_probability = 0;
  __syncthreads();
  if (bad) return;
  s.top = top;
  if (rule.temperature == 0) {
    if (rule.log_probability) sample_log_probability(s, drawn);
    return;
  }
  s.kept = {rule.min_p ? sample_key(top + rule.min_p_log) : 0u, V};
  s.ties_before = 0;
  if (rule.top_k > 0 && rule.top_k < V) sample_narrow(s, true, (double)rule.top_k);
  if (rule.top_p < 1) sample_narrow(s, false, rule.top_p * sample_total(s));
  // Along the ids, as if one after the other: first whose run, then which of the run.
  int64_t ties = s.ties_before;
  double run = 0;
  sample_walk(s, [&](int64_t, float x) {
    if (sample_is_kept(s, sample_key(x), &ties)) run += sample_weight(s, x);
  });
  __syncthreads();
  runs[t] = run;
  __syncthreads();
  if (t == 0) {
    double total = 0;
    for (int i = 0; i < SAMPLE_THREADS; i++) total += runs[i];
    double left = total * wn_random_uniform(rule.seed, WN_STREAM_SAMPLE, rule.step, 0);
    chosen[0] = -1;
    for (int i = 0; i < SAMPLE_THREADS; i++) {
      if (runs[i] <= 0) continue;
      chosen[0] = i; // the last id, if rounding leaves a rest
      if (left - runs[i] < 0) break;
      left -= runs[i];
    }
    runs[0] = left;
  }
  __syncthreads();
  if (t == chosen[0]) {
    double left = runs[0];
    ties = s.ties_before;
    for (int64_t v = s.first; v < s.end; v++) {
      if (!sample_is_kept(s, sample_key(s.logits[v]), &ties)) continue;
      const double weight = sample_weight(s, s.logits[v]);
      if (weight <= 0) continue;
      drawn->token = (int32_t)v;
      left -= weight;
      if (left < 0) break;
    }
  }
  __syncthreads();
  if (rule.log_probability) sample_log_probability(s, drawn);
}

wn_status wn_cuda_sample_forward(const struct wn_exec *exec, const struct wn_sample *a) {
  sample_rules rules = {};
  for (int64_t r = 0; r < a->rows; r++) {
    const struct wn_sample_row &x = a->row[r];
    rules.row[r] = {x.logits,    x.V,
                    x.top_k,     x.temperature,
                    x.top_p,     x.min_p > 0 ? (float)log(x.min_p) : 0.0f,
                    x.min_p > 0, x.log_probability,
                    x.seed,      x.step};
  }
  WN_LAUNCH((unsigned)a->rows, SAMPLE_THREADS, 0, wn_cuda_stream(exec), sample_kernel, rules, a->drawn);
  return wn_cuda_launched(exec, "sample");
}

// Biases for one id are added in order, by the thread of the first of them.
static __global__ void adjust_kernel(wn_adjust a) {
  const float repeat = (float)a.repeat;
  WN_GRID_LOOP(v, a.V) {
    float x = a.x[v];
    if (v < a.n) {
      if (a.allowed && (v >= a.allowed_count || !a.allowed[v])) x = -INFINITY;
      if (a.seen && a.seen[v]) x = x > 0 ? x / repeat : x * repeat;
      if (a.times && a.times[v] > 0) x -= (float)(a.presence + a.frequency * a.times[v]);
    }
    a.y[v] = x;
  }
}
static __global__ void bias_kernel(wn_adjust a) {
  WN_GRID_LOOP(i, a.biases) {
    const int32_t id = a.bias_ids[i];
    bool first = true;
    for (int64_t j = 0; j < i; j++) first = first && a.bias_ids[j] != id;
    for (int64_t j = i; first && j < a.biases; j++)
      if (a.bias_ids[j] == id) a.y[id] += a.bias[j];
  }
}

wn_status wn_cuda_adjust_forward(const struct wn_exec *exec, const struct wn_adjust *a) {
  WN_LAUNCH(wn_cuda_blocks(a->V), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), adjust_kernel, *a);
  if (a->biases > 0) WN_LAUNCH(wn_cuda_blocks(a->biases), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), bias_kernel, *a);
  return wn_cuda_launched(exec, "adjust");
}
