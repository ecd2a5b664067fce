/* The attention operation on a backend's own arrays, and steps of decoding, measured and checked, for bench/gpu. Each
 * line of standard input is a question in JSON, each line of standard output its answer; the process stays, so that
 * another program's measures can take turns with it.
 *
 *   bench_device BACKEND
 *   {"do": "time", "B": 1, "T": 16384, "H": 12, "Hkv": 12, "D": 64, "type": "bf16", "kind": "selective", "backward":
 * true} seconds of a pass (forward, or forward and backward): each sample is so many passes in a row that they take 20
 * ms, from the first call until the last is done; with what the arrays beyond q, k, v and dy take
 *   {"do": "error", ...}
 *     |x - ref| / |ref| of y, dq, dk and dv against the reference in double; for bf16 that of a naive computation too
 *   {"do": "once", ...}
 *     computes and measures nothing: for tools that look at every instruction
 *   {"do": "decode", "model": "FILE", "sessions": 32, "context": 512, "steps": 32, "budgets": "512", "policy":
 * "streaming"} seconds of a step in which so many sessions draw a token each behind `context` tokens, of reading these,
 * and, where the model was not there yet, of loading it
 *
 * Kinds: standard; selective; mem: selective with L_mem, M's gradient 0.1 everywhere; exclusive; dead: selective,
 * leaving out keys whose weights add up to less than 2^-24. Queries and keys are normed as QK-norm leaves them, those
 * of the selecting head's queries times 0.15: F grows to 70 in a thousand rows. With "dead": 0.9 nine keys of ten are
 * dead some 70 rows after they came, and the others never are; the answer has as "dead" what share of the last 64
 * keys of the first half is dead at three quarters of the text. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "decode.h"
#include "ops/attention.h"
#include "tensor/bf16.h"
#if WN_HAVE_NAIVE
#include "ops/naive.h"
#endif

enum { INPUTS = 4, SAMPLES = 64, ROOM = 16 };
enum kind { STANDARD, SELECTIVE, MEM, EXCLUSIVE, DEAD, KINDS };
static const double DEAD_SHARE = 0x1p-24; /* of a row's sum, that all keys left out may weigh */
static const char *const kind_names[KINDS] = {"standard", "selective", "mem", "exclusive", "dead"};
static const char *const input_names[INPUTS] = {"q", "k", "v", "dy"};

struct question {
  int64_t B, T, H, Hkv, D, repeats;
  double dead; /* the share of keys that die; below 0: as it comes */
  enum kind kind;
  bool bf16, backward, error, once;
};

/* Arrays of one call on one backend. */
struct job {
  struct wn_exec exec;
  struct wn_attention a;
  const struct wn_memory *memory;
  void *made[ROOM];
  int count;
  size_t bytes; /* of `made` */
};

static wn_context *ctx;
static const struct wn_backend *backend;
static const struct wn_memory *memory; /* the backend's arrays */
/* The inputs of the last question, which the next may share: on the host in floats, and the backend's. */
static struct {
  int64_t n[INPUTS], D, H;
  double dead;
  bool bf16;
  float *host[INPUTS];
  void *own[INPUTS];
} inputs;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* splitmix64: of variance 1, -sqrt(3) to sqrt(3). */
static float number(uint64_t salt, uint64_t i) {
  uint64_t z = salt * UINT64_C(0xD1B54A32D192ED03) + i * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return ((float)(z >> 40) * 0x1p-23f - 1) * 1.7320508f;
}

/* Heads of D numbers, brought to a mean square of 1, those of head 0 of every H times `first`. */
static void qk_norm(float *x, int64_t n, int64_t D, int64_t H, float first) {
  for (int64_t i = 0; i < n / D; i++) {
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)x[i * D + d] * (double)x[i * D + d];
    const float by = (float)sqrt((double)D / sum) * (i % H == 0 ? first : 1);
    for (int64_t d = 0; d < D; d++) x[i * D + d] *= by;
  }
}

/* Is key j of a text one of the share that dies? They are spread evenly. */
static bool mortal(int64_t j, double share) {
  return fmod((double)j * 0.6180339887498949, 1) < share;
}

/* The selecting head's queries along one direction, the keys that they read along it or against it: what they select
 * grows by the same in every row, or never. Numbers of variance 1 are what else there is. */
static void make_mortal(float *x, int64_t n, const struct question *o, bool keys) {
  const int64_t heads = keys ? o->Hkv : o->H;
  for (int64_t i = 0; i < n / o->D; i += heads) {
    const float along = !keys ? 4 : mortal(i / heads % o->T, o->dead) ? 1 : -1;
    for (int64_t d = 0; d < o->D; d++) x[i * o->D + d] += along;
  }
}

static void inputs_clear(void) {
  for (int i = 0; i < INPUTS; i++) {
    wn_free(inputs.host[i]);
    memory->release(inputs.own[i]);
    inputs.host[i] = NULL, inputs.own[i] = NULL;
  }
}

static wn_status inputs_make(const struct question *o) {
  const int64_t q = o->B * o->T * o->H * o->D, k = o->B * o->T * o->Hkv * o->D, n[INPUTS] = {q, k, k, q};
  if (inputs.host[0] && inputs.D == o->D && inputs.H == o->H && inputs.bf16 == o->bf16 && inputs.dead == o->dead &&
      !memcmp(inputs.n, n, sizeof n))
    return WN_OK;
  inputs_clear();
  memcpy(inputs.n, n, sizeof n);
  inputs.D = o->D, inputs.H = o->H, inputs.bf16 = o->bf16, inputs.dead = o->dead;
  for (int i = 0; i < INPUTS; i++) {
    void *p;
    WN_TRY(wn_alloc(ctx, input_names[i], (size_t)n[i] * sizeof(float), &p));
    float *x = inputs.host[i] = p;
    for (int64_t j = 0; j < n[i]; j++) x[j] = number((uint64_t)i + 1, (uint64_t)j);
    if (i < 2 && o->dead >= 0) make_mortal(x, n[i], o, i == 1);
    if (i < 2) qk_norm(x, n[i], o->D, i == 0 ? o->H : o->Hkv, i == 0 ? 0.15f : 1);
    uint16_t *rounded = NULL;
    if (o->bf16) {
      WN_TRY(wn_alloc(ctx, input_names[i], (size_t)n[i] * 2, &p));
      rounded = p;
      for (int64_t j = 0; j < n[i]; j++) {
        rounded[j] = wn_bf16_round(x[j]);
        x[j] = wn_bf16_value(rounded[j]);
      }
    }
    const size_t bytes = (size_t)n[i] * (o->bf16 ? 2 : 4);
    wn_status status = memory->allocate(ctx, input_names[i], bytes, &inputs.own[i]);
    if (status == WN_OK) status = memory->copy_in(ctx, inputs.own[i], rounded ? (void *)rounded : (void *)x, bytes);
    wn_free(rounded);
    WN_TRY(status);
  }
  return WN_OK;
}

/* ---- a call ---- */

static wn_status job_array(struct job *j, const char *what, size_t bytes, void **out) {
  WN_TRY(j->memory->allocate(ctx, what, bytes, out));
  j->made[j->count++] = *out;
  j->bytes += bytes;
  return WN_OK;
}

/* `value` n times, in the job's type. */
static wn_status job_filled(struct job *j, const char *what, int64_t n, double value, const void **out) {
  const size_t bytes = (size_t)n * wn_dtype_size(j->exec.dtype);
  void *host, *own;
  WN_TRY(job_array(j, what, bytes, &own));
  WN_TRY(wn_alloc(ctx, what, bytes, &host));
  for (int64_t i = 0; i < n; i++) {
    if (j->exec.dtype == WN_F64)
      ((double *)host)[i] = value;
    else
      ((float *)host)[i] = (float)value;
  }
  const wn_status status = j->memory->copy_in(ctx, own, host, bytes);
  wn_free(host);
  *out = own;
  return status;
}

/* Of the inputs as they lie on the backend, or of `own`. */
static wn_status job_init(struct job *j, const struct question *o, const struct wn_backend *with, wn_dtype dtype,
                          void *const own[INPUTS]) {
  const int64_t rows = o->B * o->T, q = rows * o->H * o->D, k = rows * o->Hkv * o->D;
  const bool bf16 = o->bf16 && dtype == WN_F32;
  const size_t size = bf16 ? 2 : wn_dtype_size(dtype), each = wn_dtype_size(dtype);
  *j = (struct job){.exec = {.ctx = ctx, .backend = with, .threads = wn_context_threads(ctx), .dtype = dtype}};
  j->memory = with->memory ? with->memory : &wn_host_memory;
  struct wn_attention *a = &j->a;
  *a = (struct wn_attention){.B = o->B, .Tq = o->T, .Tk = o->T, .H = o->H, .Hkv = o->Hkv, .D = o->D};
  a->scale = 1 / sqrt((double)o->D);
  a->row_type = bf16 ? WN_BF16 : dtype;
  a->s_q = a->s_y = (struct wn_stride){o->T * o->H * o->D, o->H * o->D, o->D};
  a->s_k = a->s_v = (struct wn_stride){o->T * o->Hkv * o->D, o->Hkv * o->D, o->D};
  a->q = own[0], a->k = own[1], a->v = own[2], a->dy = own[3];
  WN_TRY(job_array(j, "y", (size_t)q * size, &a->y));
  WN_TRY(job_array(j, "lse", (size_t)(rows * o->H) * each, &a->lse));
  if (o->backward) {
    WN_TRY(job_array(j, "dq", (size_t)q * size, &a->dq));
    WN_TRY(job_array(j, "dk", (size_t)k * size, &a->dk));
    WN_TRY(job_array(j, "dv", (size_t)k * size, &a->dv));
  }
  if (o->kind == EXCLUSIVE) {
    a->exclusive.on = true;
    if (o->backward) WN_TRY(job_array(j, "y.v", (size_t)(rows * o->H) * each, &a->exclusive.dot));
  }
  if (o->kind == SELECTIVE || o->kind == MEM || o->kind == DEAD) {
    a->sel.on = a->sel.relu = a->sel.protect_first = a->sel.protect_self = a->sel.shift = true;
    a->sel.groups = 1;
    a->sel.dead_share = o->kind == DEAD ? DEAD_SHARE : 0;
  }
  if (o->kind == MEM) {
    a->sel.mem = true, a->sel.mem_tau = 1;
    WN_TRY(job_array(j, "M", (size_t)rows * each, &a->sel.M));
    WN_TRY(job_filled(j, "dM", rows, 0.1, &a->sel.dM));
  }
  size_t bytes = wn_op_attention_scratch(&j->exec, a, false);
  if (o->backward) {
    const size_t more = wn_op_attention_scratch(&j->exec, a, true);
    bytes = more > bytes ? more : bytes;
  }
  j->exec.scratch_bytes = bytes;
  return job_array(j, "scratch", bytes, &j->exec.scratch);
}

static void job_clear(struct job *j) {
  for (int i = 0; i < j->count; i++) j->memory->release(j->made[i]);
}

static wn_status job_run(struct job *j, bool backward) {
  WN_TRY(wn_op_attention_forward(&j->exec, &j->a));
  return backward ? wn_op_attention_backward(&j->exec, &j->a) : WN_OK;
}

static wn_status job_wait(const struct job *j) {
  return j->memory->wait(ctx, j->memory->record(ctx));
}

/* ---- answers ---- */

static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

static double product(const float *x, const float *y) {
  double sum = 0;
  for (int64_t d = 0; d < inputs.D; d++) sum += (double)x[d] * (double)y[d];
  return sum;
}

/* Of the last keys of the first half, the share that is dead at three quarters (docs/selective-attention.md). */
static double dead_share(const struct question *o, double share) {
  enum { ASKED = 64 };
  const int64_t row = o->T * 3 / 4, n = o->T / 2 < ASKED ? o->T / 2 : ASKED, per = o->H / o->Hkv;
  const double scale = 1 / sqrt((double)o->D);
  const float *q = inputs.host[0], *k = inputs.host[1];
  int64_t dead = 0;
  double *most = calloc((size_t)o->H * 2, sizeof *most), *low = most + o->H; /* of the rows to come, by head */
  if (!most) return NAN;
  for (int64_t i = row; i < o->T; i++)
    for (int64_t h = 0; h < o->H; h++) {
      const float *own = q + (i * o->H + h) * o->D;
      most[h] = fmax(most[h], scale * sqrt(product(own, own)));
      low[h] = fmin(low[h], scale * product(own, k + (i * o->Hkv + h / per) * o->D));
    }
  for (int64_t x = 0; x < n; x++) {
    const int64_t j = o->T / 2 - n + x;
    double F = 0;
    bool is = true;
    for (int64_t i = j + 1; i < row; i++) F += fmax(0, scale * product(q + i * o->H * o->D, k + j * o->Hkv * o->D));
    for (int64_t h = 0; h < o->H; h++) {
      const float *key = k + (j * o->Hkv + h / per) * o->D;
      is &= most[h] * sqrt(product(key, key)) - low[h] - F < log(share / (double)o->T);
    }
    dead += is;
  }
  free(most);
  return (double)dead / (double)n;
}

static wn_status answer_time(const struct question *o, json_t *out) {
  struct job j;
  double samples[SAMPLES];
  WN_TRY(inputs_make(o));
  wn_status status = job_init(&j, o, backend, WN_F32, inputs.own);
  int64_t passes = 1;
  for (int64_t i = -2; status == WN_OK && i < o->repeats; i++) {
    const double begin = now();
    for (int64_t n = 0; status == WN_OK && n < passes; n++) status = job_run(&j, o->backward);
    if (status == WN_OK) status = job_wait(&j);
    const double each = (now() - begin) / (double)passes;
    if (i == -1) passes = each < 0.02 ? (int64_t)fmin(400, ceil(0.02 / each)) : 1;
    if (i >= 0) samples[i] = each;
  }
  if (status == WN_OK) {
    qsort(samples, (size_t)o->repeats, sizeof *samples, ascending);
    const double median = samples[o->repeats / 2];
    json_object_set_new(out, "seconds", json_real(median));
    json_object_set_new(out, "spread",
                        json_real((samples[(3 * (o->repeats - 1) + 2) / 4] - samples[(o->repeats - 1) / 4]) / median));
    json_object_set_new(out, "repeats", json_integer(o->repeats));
    json_object_set_new(out, "passes", json_integer(passes));
    json_object_set_new(out, "bytes", json_integer((json_int_t)j.bytes));
    if (o->dead >= 0) json_object_set_new(out, "dead", json_real(dead_share(o, DEAD_SHARE)));
  }
  job_clear(&j);
  return status;
}

/* Results as doubles, on the host. */
static wn_status results(const struct job *j, const struct question *o, double *to[INPUTS]) {
  const int64_t q = inputs.n[0], k = inputs.n[1], n[INPUTS] = {q, q, k, k};
  void *const arrays[INPUTS] = {j->a.y, j->a.dq, j->a.dk, j->a.dv};
  const wn_dtype type = o->bf16 && j->exec.dtype == WN_F32 ? WN_BF16 : j->exec.dtype;
  const size_t size = type == WN_BF16 ? 2 : wn_dtype_size(type);
  for (int i = 0; i < INPUTS; i++) {
    void *raw;
    WN_TRY(wn_alloc(ctx, "results", (size_t)n[i] * size, &raw));
    const wn_status status = wn_memory_read(ctx, j->memory, raw, arrays[i], (size_t)n[i] * size);
    for (int64_t e = 0; status == WN_OK && e < n[i]; e++) to[i][e] = wn_number(raw, e, type);
    wn_free(raw);
    WN_TRY(status);
  }
  return WN_OK;
}

static wn_status computed(const struct question *o, const struct wn_backend *with, wn_dtype dtype,
                          void *const own[INPUTS], double *to[INPUTS]) {
  struct job j;
  wn_status status = job_init(&j, o, with, dtype, own);
  if (status == WN_OK) status = job_run(&j, true);
  if (status == WN_OK) status = results(&j, o, to);
  job_clear(&j);
  return status;
}

static void distances(json_t *out, const char *name, double *const got[INPUTS], double *const want[INPUTS]) {
  static const char *const names[INPUTS] = {"y", "dq", "dk", "dv"};
  const int64_t q = inputs.n[0], k = inputs.n[1], n[INPUTS] = {q, q, k, k};
  json_t *all = json_object();
  for (int i = 0; i < INPUTS; i++) {
    double apart = 0, size = 0;
    for (int64_t e = 0; e < n[i]; e++) {
      apart += (got[i][e] - want[i][e]) * (got[i][e] - want[i][e]);
      size += want[i][e] * want[i][e];
    }
    json_object_set_new(all, names[i], json_real(sqrt(apart / size)));
  }
  json_object_set_new(out, name, all);
}

static wn_status answer_error(const struct question *o, json_t *out) {
  enum { WANT, GOT, NAIVE, WAYS };
  double *x[WAYS][INPUTS] = {{NULL}};
  void *wide[INPUTS] = {NULL}, *rounded[INPUTS] = {NULL};
  WN_TRY(inputs_make(o));
  wn_status status = WN_OK;
  for (int i = 0; i < INPUTS && status == WN_OK; i++) {
    const size_t n = (size_t)inputs.n[i];
    for (int w = 0; w < WAYS && status == WN_OK; w++)
      status = wn_alloc(ctx, "results", (size_t)inputs.n[0] * sizeof(double), (void **)&x[w][i]);
    if (status == WN_OK) status = wn_alloc(ctx, "inputs", n * sizeof(double), &wide[i]);
    if (status == WN_OK) status = wn_alloc(ctx, "inputs", n * sizeof(float), &rounded[i]);
    for (size_t e = 0; e < n && status == WN_OK; e++) {
      ((double *)wide[i])[e] = (double)inputs.host[i][e];
      if (o->bf16) ((uint16_t *)rounded[i])[e] = wn_bf16_round(inputs.host[i][e]);
    }
  }
  if (status == WN_OK) status = computed(o, wn_backend_ref(), WN_F64, wide, x[WANT]);
  if (status == WN_OK) status = computed(o, backend, WN_F32, inputs.own, x[GOT]);
  if (status == WN_OK) distances(out, "error", x[GOT], x[WANT]);
#if WN_HAVE_NAIVE
  if (status == WN_OK && o->bf16) status = computed(o, wn_backend_naive(), WN_F32, rounded, x[NAIVE]);
  if (status == WN_OK && o->bf16) distances(out, "naive", x[NAIVE], x[WANT]);
#endif
  for (int i = 0; i < INPUTS; i++) {
    for (int w = 0; w < WAYS; w++) wn_free(x[w][i]);
    wn_free(wide[i]), wn_free(rounded[i]);
  }
  return status;
}

static wn_status answer_once(const struct question *o, json_t *out) {
  struct job j;
  WN_TRY(inputs_make(o));
  wn_status status = job_init(&j, o, backend, WN_F32, inputs.own);
  if (status == WN_OK) status = job_run(&j, o->backward);
  if (status == WN_OK) status = job_wait(&j);
  json_object_set_new(out, "once", json_true());
  job_clear(&j);
  return status;
}

static wn_status answer(const struct question *o, json_t *out) {
  return o->error ? answer_error(o, out) : o->once ? answer_once(o, out) : answer_time(o, out);
}

static bool ask(json_t *j, struct question *o) {
  const char *what = "", *type = "f32", *kind = "standard";
  int backward = 0;
  json_int_t B = 1, T = 0, H = 1, Hkv = 0, D = 64, repeats = 9;
  double dead = -1;
  const bool read = j && json_unpack(j, "{s:s, s?I, s:I, s?I, s?I, s?I, s?s, s?s, s?b, s?I, s?F}", "do", &what, "B", &B,
                                     "T", &T, "H", &H, "Hkv", &Hkv, "D", &D, "type", &type, "kind", &kind, "backward",
                                     &backward, "repeats", &repeats, "dead", &dead) == 0;
  *o = (struct question){.B = B, .T = T, .H = H, .Hkv = Hkv ? Hkv : H, .D = D, .repeats = repeats, .kind = KINDS};
  o->dead = dead;
  for (int i = 0; read && i < KINDS; i++)
    if (!strcmp(kind, kind_names[i])) o->kind = (enum kind)i;
  o->bf16 = read && !strcmp(type, "bf16");
  o->error = read && !strcmp(what, "error");
  o->once = read && !strcmp(what, "once");
  o->backward = o->error || backward;
  const bool known = read && (o->error || o->once || !strcmp(what, "time")) && (o->bf16 || !strcmp(type, "f32"));
  return known && o->kind < KINDS && B > 0 && T > 0 && H > 0 && D > 0 && o->Hkv > 0 && H % o->Hkv == 0 && repeats > 0 &&
         repeats <= SAMPLES && dead <= 1;
}

int main(int argc, char **argv) {
  char line[1024];
  if (argc != 2) return fprintf(stderr, "usage: bench_device BACKEND, then questions on standard input\n"), 2;
  const wn_context_options options = {.size = sizeof options, .backend = argv[1]};
  if (wn_context_create(&options, &ctx) != WN_OK || wn_backend_of(ctx, &backend) != WN_OK)
    return fprintf(stderr, "bench_device: %s\n", wn_context_error(ctx)), 1;
  memory = backend->memory ? backend->memory : &wn_host_memory;
  while (fgets(line, sizeof line, stdin)) {
    struct question o;
    json_t *out = json_object(), *j = json_loads(line, 0, NULL);
    const char *what = json_string_value(json_object_get(j, "do"));
    const bool decodes = what && !strcmp(what, "decode");
    if (!decodes && !ask(j, &o))
      json_object_set_new(out, "error_line", json_string("the question is not understood"));
    else if ((decodes ? decode_answer(ctx, j, out) : answer(&o, out)) != WN_OK)
      json_object_set_new(out, "error_line", json_string(wn_context_error(ctx)));
    json_decref(j);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(out);
  }
  inputs_clear();
  decode_clear();
  wn_context_destroy(ctx);
  return 0;
}
