/* Host arrays and their copies in device memory (arrays.h). An array gets its copy when a call first uses it. A call's
 * arguments are searched for pointers into such arrays, so a new operation or array needs no code here. Only the host
 * structs to which arguments point (quantised weights, experts) are handled by name. */
#define TESTS_CUDA_ARRAYS_INSIDE
#include "cuda/arrays.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ops/attention.h"
#include "ops/evictions.h"
#include "ops/sample.h"

enum { CALL_ARRAYS = 2048 };

/* An argument may be a bool followed by stale bytes: a word that looks like an address and whose lowest byte must not
 * change. Host arrays therefore have the device's alignment, and such a word alone does not count as an address on the
 * stack. */
enum { ALIGNED = 256 };

struct held {
  char *host, *device; /* device: NULL before the first use */
  size_t bytes;
};
static struct held *all;
static size_t count, room;

static struct held *find(const void *p) {
  const uintptr_t at = (uintptr_t)p;
  for (size_t i = count; i-- > 0;)
    if (at - (uintptr_t)all[i].host < all[i].bytes) return &all[i];
  return NULL;
}

static void *hold(void *p, size_t bytes) {
  if (!p || bytes == 0) return p;
  if (count == room) {
    room = room ? 2 * room : 256;
    all = realloc(all, room * sizeof *all);
    assert_non_null(all);
  }
  all[count++] = (struct held){.host = p, .bytes = bytes};
  return p;
}

void *arrays_allocate(size_t alignment, size_t bytes) {
  void *p = NULL;
  return posix_memalign(&p, alignment > ALIGNED ? alignment : ALIGNED, bytes) == 0 ? hold(p, bytes) : NULL;
}

void *arrays_zeros(size_t n, size_t bytes) {
  void *p = arrays_allocate(ALIGNED, n * bytes);
  return p ? memset(p, 0, n * bytes) : NULL;
}

void arrays_free(void *p) {
  struct held *h = p ? find(p) : NULL;
  if (h && h->host == p) {
    wn_cuda_memory.release(h->device);
    memmove(h, h + 1, (size_t)(&all[--count] - h) * sizeof *h);
  }
  free(p);
}

/* ---- calls ---- */

struct call {
  wn_context *ctx;
  const char *op;
  struct held *used[CALL_ARRAYS];
  int n;
};

/* Whether an address is on the stack or in the program's static data. */
static bool out_of_reach(uintptr_t at) {
  extern char etext, end;
  static uintptr_t stack, top;
  if (!top) {
    pthread_attr_t attributes;
    void *first;
    size_t bytes;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &first, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack = (uintptr_t)first, top = stack + bytes;
  }
  return (at >= stack && at < top) || (at >= (uintptr_t)&etext && at < (uintptr_t)&end);
}

/* The device address for `p`. Other pointers, and words that are not pointers, stay as they are. */
static void *device(struct call *c, void *p) {
  struct held *h = find(p);
  if (!h) {
    if ((uintptr_t)p % ALIGNED > 1 && out_of_reach((uintptr_t)p))
      fail_msg("%s: an array on the stack or a static one", c->op);
    return p;
  }
  if (!h->device) {
    void *made;
    if (wn_cuda_memory.allocate(c->ctx, "a test's array", h->bytes, &made) != WN_OK)
      fail_msg("%s: no memory on the device", c->op);
    h->device = made;
  }
  int i = 0;
  while (i < c->n && c->used[i] != h) i++;
  assert_true(i < CALL_ARRAYS);
  if (i == c->n) c->used[c->n++] = h;
  return h->device + ((char *)p - h->host);
}

static void words(struct call *c, void *args, size_t bytes) {
  for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
    void *p;
    memcpy(&p, (char *)args + at, sizeof p);
    p = device(c, p);
    memcpy((char *)args + at, &p, sizeof p);
  }
}

static wn_status begin(const struct call *c) {
  for (int i = 0; i < c->n; i++)
    WN_TRY(wn_cuda_memory.copy_in(c->ctx, c->used[i]->device, c->used[i]->host, c->used[i]->bytes));
  return WN_OK;
}

static wn_status finish(const struct call *c, wn_status status) {
  for (int i = 0; i < c->n && status == WN_OK; i++)
    status = wn_cuda_memory.copy_out(c->ctx, c->used[i]->host, c->used[i]->device, c->used[i]->bytes);
  const wn_status waited = wn_cuda_memory.wait(c->ctx, wn_cuda_memory.record(c->ctx));
  return status == WN_OK ? waited : status;
}

/* ---- host structs ---- */

/* What arguments point to besides arrays: removed before the search, restored with device addresses. */
struct structs {
  const struct wn_packed *packed[2 * WN_EXPERTS_MAX + 2];
  struct wn_packed own[2 * WN_EXPERTS_MAX + 2];
  struct wn_expert expert[WN_EXPERTS_MAX];
  const struct wn_evict_slots *slots;
  struct wn_evict_slots slot[WN_EVICT_ARRAYS];
  const struct wn_policy_kind *kind;
  const struct wn_score_kind *kinds[WN_SCORE_MAPS_MAX];
  const struct wn_attention *call;
  struct wn_attention attention;
};

static const struct wn_packed *packed_of(struct call *c, struct structs *s, int i) {
  if (!s->packed[i]) return NULL;
  s->own[i] = *s->packed[i];
  words(c, &s->own[i], sizeof s->own[i]);
  return &s->own[i];
}

#define ARRAYS_ALONE(name)                                                                                             \
  static void name##_take(struct wn_##name *a, struct structs *s) {                                                    \
    (void)a, (void)s;                                                                                                  \
  }                                                                                                                    \
  static void name##_put(struct call *c, struct wn_##name *a, struct structs *s) {                                     \
    (void)c, (void)a, (void)s;                                                                                         \
  }
#define ARRAYS_PACKED(name)                                                                                            \
  static void name##_take(struct wn_##name *a, struct structs *s) {                                                    \
    s->packed[0] = a->packed;                                                                                          \
    a->packed = NULL;                                                                                                  \
  }                                                                                                                    \
  static void name##_put(struct call *c, struct wn_##name *a, struct structs *s) {                                     \
    a->packed = packed_of(c, s, 0);                                                                                    \
  }
ARRAYS_PACKED(linear)
ARRAYS_PACKED(embedding)
ARRAYS_ALONE(norm)
ARRAYS_ALONE(rope)
ARRAYS_ALONE(act)
ARRAYS_ALONE(dropout)
ARRAYS_ALONE(noise)
ARRAYS_ALONE(add)
ARRAYS_ALONE(softcap)
ARRAYS_ALONE(scale)
ARRAYS_ALONE(cross_entropy)
ARRAYS_ALONE(attention_sums)
ARRAYS_ALONE(adamw)
ARRAYS_ALONE(adagrad)
ARRAYS_ALONE(sumsq)
ARRAYS_ALONE(mix)
ARRAYS_ALONE(clamp)
ARRAYS_ALONE(convert)
ARRAYS_ALONE(gather)
ARRAYS_ALONE(sigmoid)
ARRAYS_ALONE(silu)
ARRAYS_ALONE(loss_sums)
ARRAYS_ALONE(span_sum)
ARRAYS_ALONE(memory_loss)
ARRAYS_ALONE(gate_share)
ARRAYS_ALONE(adjust)
ARRAYS_ALONE(sample)

static void expert_take(struct wn_expert *e, struct structs *s, int64_t i) {
  s->packed[2 * i] = e->packed_in, s->packed[2 * i + 1] = e->packed_out;
  e->packed_in = e->packed_out = NULL;
}
static void expert_put(struct call *c, struct wn_expert *e, struct structs *s, int i) {
  e->packed_in = packed_of(c, s, 2 * i), e->packed_out = packed_of(c, s, 2 * i + 1);
}
static void experts_take(struct wn_experts *a, struct structs *s) {
  for (int64_t i = 0; i < a->E; i++) {
    s->expert[i] = a->expert[i];
    expert_take(&s->expert[i], s, i);
  }
  expert_take(&a->shared, s, a->E);
  a->expert = NULL;
}
static void experts_put(struct call *c, struct wn_experts *a, struct structs *s) {
  words(c, s->expert, (size_t)a->E * sizeof *s->expert);
  for (int i = 0; i < a->E; i++) expert_put(c, &s->expert[i], s, i);
  expert_put(c, &a->shared, s, (int)a->E);
  a->expert = s->expert;
}

static void evict_take(struct wn_evict *a, struct structs *s) {
  s->slots = a->slots, s->kind = a->rule.kind;
  a->slots = NULL, a->rule.kind = NULL;
}
static void evict_put(struct call *c, struct wn_evict *a, struct structs *s) {
  memcpy(s->slot, s->slots, (size_t)a->count * sizeof *s->slot);
  words(c, s->slot, (size_t)a->count * sizeof *s->slot);
  a->slots = s->slot, a->rule.kind = s->kind;
}

static void attention_take(struct wn_attention *a, struct structs *s) {
  for (int i = 0; i < WN_SCORE_MAPS_MAX; i++) s->kinds[i] = a->map[i].kind, a->map[i].kind = NULL;
}
static void attention_put(struct call *c, struct wn_attention *a, struct structs *s) {
  (void)c;
  for (int i = 0; i < WN_SCORE_MAPS_MAX; i++) a->map[i].kind = s->kinds[i];
}

static void evictions_take(struct wn_evictions *a, struct structs *s) {
  s->call = a->a, s->kind = a->rule.kind;
  a->a = NULL, a->rule.kind = NULL;
}
static void evictions_put(struct call *c, struct wn_evictions *a, struct structs *s) {
  s->attention = *s->call;
  attention_take(&s->attention, s);
  words(c, &s->attention, sizeof s->attention);
  attention_put(c, &s->attention, s);
  a->a = &s->attention, a->rule.kind = s->kind;
}

/* ---- backend ---- */

#define ARRAYS_DIRECTION(name, args, direction)                                                                        \
  static wn_status arrays_##name##_##direction(const struct wn_exec *exec, const args *a) {                            \
    static struct structs structs;                                                                                     \
    static struct call c;                                                                                              \
    struct wn_exec own_exec = *exec;                                                                                   \
    args own = *a;                                                                                                     \
    c.ctx = exec->ctx, c.op = #name, c.n = 0;                                                                          \
    name##_take(&own, &structs);                                                                                       \
    words(&c, &own, sizeof own);                                                                                       \
    name##_put(&c, &own, &structs);                                                                                    \
    own_exec.backend = wn_backend_cuda_table();                                                                        \
    own_exec.scratch = device(&c, exec->scratch);                                                                      \
    WN_TRY(begin(&c));                                                                                                 \
    return finish(&c, own_exec.backend->name##_##direction(&own_exec, &own));                                          \
  }
#define ARRAYS_SLOTS(name, args, has_backward)                                                                         \
  ARRAYS_DIRECTION(name, args, forward)                                                                                \
  ARRAYS_DIRECTION(name, args, backward)
WN_OPS(ARRAYS_SLOTS)

const struct wn_backend *arrays_backend(void) {
  static struct wn_backend table;
  table = *wn_backend_cuda_table();
#define ARRAYS_FILL(name, args, has_backward)                                                                          \
  if (table.name##_forward) table.name##_forward = arrays_##name##_forward;                                            \
  if (table.name##_backward) table.name##_backward = arrays_##name##_backward;
  WN_OPS(ARRAYS_FILL)
  table.attention_together = NULL, table.gather_together = NULL;
  return &table;
}

extern void *wn_cuda_work_stream; /* memory.cu: the stream for all work */

static const char *attend(const struct wn_attention *a, void *scratch, int64_t rows, void *stream, bool backward) {
  static struct structs structs;
  static struct call c;
  struct wn_attention own = *a;
  c.ctx = NULL, c.op = "attention", c.n = 0;
  attention_take(&own, &structs);
  words(&c, &own, sizeof own);
  attention_put(&c, &own, &structs);
  scratch = device(&c, scratch);
  if (begin(&c) != WN_OK) return "a copy in";
  const char *error = (backward ? wn_cuda_attend_backward
                                : wn_cuda_attend_forward)(&own, scratch, rows, stream ? stream : wn_cuda_work_stream);
  return finish(&c, WN_OK) == WN_OK ? error : "a copy out";
}
const char *arrays_attend_forward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream) {
  return attend(a, scratch, rows, stream, false);
}
const char *arrays_attend_backward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream) {
  return attend(a, scratch, rows, stream, true);
}
