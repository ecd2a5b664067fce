// Blocks, fibers, barriers and shared memory for emulate.h. A block's threads are fibers, which the scheduler below
// runs in turn. On x86-64 switching fibers takes a dozen instructions; elsewhere it uses ucontext.
#include "cuda/emulate_queue.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulate {

place *current;

namespace {

enum { STACK_BYTES = 256 << 10, THREADS_MAX = 1024, BARRIERS = 16 };
enum { STATIC_LIMIT = 48 << 10, LIMIT = 227 << 10 };

enum state { READY, WAITS, ENDED };

struct copy {
  void *to;
  const void *from;
  int bytes;
  bool valid;
  int group;
};

struct request {
  site at;
  uint32_t mask;
  together run;
  const void *what;
  void *data;
  bool aligned, done;
};

struct fiber {
  place where;
  state now;
  site at; // where it waits
  int id;
  int barrier_sum;
  request *asks;
  std::vector<copy> copies;
  int group;
  char *stack;
  bool left_behind; // its stack was abandoned while it waited
#if defined(__x86_64__)
  void *sp;
#else
  ucontext_t context;
#endif
  void *fake_stack;
};

struct barrier_state {
  int arrived, expected, sum;
  site at;
  std::vector<fiber *> waiting;
};

struct shared_block {
  char *memory; // between two canaries, unless a sanitizer watches it
  size_t bytes, align;
};

// The machine's state. It runs one launch at a time.
uint64_t seed, launches, order_state;
std::map<std::string, uint64_t> launches_by_file;
std::map<const void *, size_t> limits;
std::map<const void *, shared_block> statics;
shared_block dynamic;
size_t static_bytes;
std::vector<fiber *> &fibers = *new std::vector<fiber *>; // all fibers ever made; a block uses the first ones
fiber *running;
int threads, live;
uint32_t lanes_ended[THREADS_MAX / 32], lanes_asking[THREADS_MAX / 32];
barrier_state barriers[BARRIERS];
std::map<const void *, named_kernel> kernels;
void (*call_kernel)(const void *, void *const *);
const void *call_address;
void *const *call_with;
char error_text[512];
bool failed, error_is_new, last_is_error;
#if defined(__x86_64__)
void *scheduler_sp;
#else
ucontext_t scheduler_context;
#endif
#ifdef ADDRESS_SANITIZER
void *scheduler_fake;
const void *scheduler_bottom;
size_t scheduler_size;
#endif

const char *short_name(const char *file) {
  const char *slash = strrchr(file, '/');
  return slash ? slash + 1 : file;
}

__attribute__((format(printf, 1, 2))) void report(const char *format, ...) {
  if (failed) return;
  va_list args;
  va_start(args, format);
  vsnprintf(error_text, sizeof error_text, format, args);
  va_end(args);
  failed = error_is_new = last_is_error = true;
}

uint64_t next_random() { // splitmix64
  uint64_t z = order_state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

template <class T> void shuffle_order(std::vector<T> &order) {
  if (!seed) return;
  for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
}

#if defined(__x86_64__)
} // namespace
} // namespace emulate
extern "C" void wn_emulate_switch(void **save, void *to);
asm(R"(
.text
.globl wn_emulate_switch
.hidden wn_emulate_switch
.type wn_emulate_switch, @function
wn_emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size wn_emulate_switch, .-wn_emulate_switch
)");
namespace emulate {
namespace {
#endif

#ifdef ADDRESS_SANITIZER
// Is the sanitizer told of switches? It marks what it watches by address, on any stack. Only where it moves frames to
// the heap (detect_stack_use_after_return) must it know whose frames end; being told takes a fifth of a test's time.
bool told() {
  static const char *const options = getenv("ASAN_OPTIONS");
  static const bool is_told = options && strstr(options, "detect_stack_use_after_return=1");
  return is_told;
}
#endif

// Switches from the running fiber to the scheduler. `last`: it does not return.
void leave(bool last) {
  fiber *f = running;
#ifdef ADDRESS_SANITIZER
  if (told()) __sanitizer_start_switch_fiber(last ? nullptr : &f->fake_stack, scheduler_bottom, scheduler_size);
#else
  (void)last;
#endif
#if defined(__x86_64__)
  wn_emulate_switch(&f->sp, scheduler_sp);
#else
  swapcontext(&f->context, &scheduler_context);
#endif
#ifdef ADDRESS_SANITIZER
  if (told()) __sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

void enter(fiber *f) {
  running = f;
  current = &f->where;
#ifdef ADDRESS_SANITIZER
  if (told()) __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
  wn_emulate_switch(&scheduler_sp, f->sp);
#else
  swapcontext(&scheduler_context, &f->context);
#endif
#ifdef ADDRESS_SANITIZER
  if (told()) __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
  running = nullptr;
  current = nullptr;
}

void wait_until(site at) {
  running->now = WAITS;
  running->at = at;
  do leave(false);
  while (running->now == WAITS || failed); // after an error no thread continues
}

void barrier_release(int id) {
  barrier_state &b = barriers[id];
  const int sum = b.sum;
  fiber *firsts[THREADS_MAX / 32] = {nullptr};
  for (fiber *f : b.waiting) {
    // The lanes of a warp must arrive at the same barrier.
    fiber *&g = firsts[f->id / 32];
    if (!g) g = f;
    if (f->at.line != g->at.line)
      report("threads %d and %d of one warp wait at different barriers, %s:%d and %d", f->id, g->id,
             short_name(f->at.file), f->at.line, g->at.line);
    f->barrier_sum = sum;
    f->now = READY;
  }
  b = barrier_state{0, 0, 0, {nullptr, 0}, {}};
}

// Runs the warp operation if all lanes of its mask have arrived.
void warp_try(int w, const request &r) {
  const uint32_t needed = r.mask & ~lanes_ended[w];
  if (needed & ~lanes_asking[w]) return;
  request *asks[32] = {nullptr};
  void *data[32] = {nullptr};
  for (int l = 0; l < 32; l++) {
    if (!(needed >> l & 1)) continue;
    if (w * 32 + l >= threads || !fibers[w * 32 + l]->asks) return;
    asks[l] = fibers[w * 32 + l]->asks;
    data[l] = asks[l]->data;
    if (asks[l]->run != r.run || asks[l]->mask != r.mask || (r.aligned && asks[l]->at.line != r.at.line)) {
      report("lanes of warp %d meet at different instructions: %s:%d and %s:%d", w, short_name(r.at.file), r.at.line,
             short_name(asks[l]->at.file), asks[l]->at.line);
      return;
    }
  }
  r.run(data, r.what);
  for (int l = 0; l < 32; l++) {
    if (!asks[l]) continue;
    asks[l]->done = true;
    fibers[w * 32 + l]->asks = nullptr;
    lanes_asking[w] &= ~(1u << l);
    fibers[w * 32 + l]->now = READY;
  }
}

void fiber_ended() {
  fiber *f = running;
  if (!f->copies.empty()) report("thread %d ended with copies under way that it never waited for", f->id);
  f->now = ENDED;
  live--;
  const int w = f->id / 32;
  lanes_ended[w] |= 1u << f->id % 32;
  // Threads that have ended are not waited for.
  if (barriers[0].arrived && barriers[0].arrived == live) barrier_release(0);
  for (int l = 0; l < 32 && w * 32 + l < threads; l++)
    if (fibers[w * 32 + l]->asks) {
      warp_try(w, *fibers[w * 32 + l]->asks);
      break;
    }
}

void fiber_main() {
#ifdef ADDRESS_SANITIZER
  if (told()) __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  call_kernel(call_address, call_with);
  fiber_ended();
  leave(true);
  abort();
}

fiber *fiber_make() {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  // A guard page lies below each stack.
  char *memory = static_cast<char *>(
      mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)) {
    perror("emulate: stacks");
    abort();
  }
  fiber *f = new fiber();
  f->stack = memory + page;
  return f;
}

void fiber_begin(fiber *f) {
  f->now = READY;
  f->asks = nullptr;
  f->copies.clear();
  f->group = 0;
  f->fake_stack = nullptr;
#ifdef ADDRESS_SANITIZER
  if (f->left_behind)
    ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK_BYTES);
  else // the outermost frames, which never return
    ASAN_UNPOISON_MEMORY_REGION(f->stack + STACK_BYTES - 1024, 1024);
#endif
  f->left_behind = true; // until it ends
#if defined(__x86_64__)
  void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES) - 2;
  *top = reinterpret_cast<void *>(fiber_main); // the address to which the switch returns
  f->sp = top - 6;
  memset(f->sp, 0, 6 * sizeof(void *));
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = STACK_BYTES;
  f->context.uc_link = nullptr;
  makecontext(&f->context, fiber_main, 0);
#endif
}

#ifdef ADDRESS_SANITIZER
constexpr size_t EDGE = 0;
#else
constexpr size_t EDGE = 64;
#endif

shared_block shared_make(size_t bytes, size_t align) {
  shared_block s = {nullptr, bytes, align};
  void *memory = nullptr;
  const size_t front = EDGE > 0 ? align : 0; // keeps the alignment
  if (posix_memalign(&memory, align, front + (bytes ? bytes : 1) + EDGE)) abort();
  s.memory = static_cast<char *>(memory) + front;
  if (EDGE > 0) memset(s.memory - front, 0x5c, front), memset(s.memory + bytes, 0x5c, EDGE);
  return s;
}
void shared_free(shared_block &s) {
  if (s.memory) free(s.memory - (EDGE > 0 ? s.align : 0));
  s.memory = nullptr;
}
void shared_check(const shared_block &s) {
  for (size_t i = 0; i < EDGE; i++)
    if (s.memory[s.bytes + i] != 0x5c || *(s.memory - 1 - i) != 0x5c)
      report("shared memory was written outside of its %zu bytes", s.bytes);
}

void say_who_waits(const char *kernel) {
  for (int t = 0; t < threads; t++) {
    const fiber *f = fibers[(size_t)t];
    if (f->now != WAITS) continue;
    report("%sthreads wait for ever: thread %d of block (%u,%u,%u), %d of %d threads left, at %s:%d%s", kernel, t,
           f->where.block.x, f->where.block.y, f->where.block.z, live, threads, short_name(f->at.file), f->at.line,
           f->asks ? " for other lanes of its warp" : "");
    return;
  }
}

void run_block(dim3 block, dim3 block_dim, dim3 grid_dim) {
  for (auto &b : barriers) b = barrier_state{0, 0, 0, {nullptr, 0}, {}};
  memset(lanes_ended, 0, sizeof lanes_ended), memset(lanes_asking, 0, sizeof lanes_asking);
  for (auto &s : statics) memset(s.second.memory, 0xff, s.second.bytes);
  memset(dynamic.memory, 0xff, dynamic.bytes);
  live = threads;
  async_begin(dynamic.memory, dynamic.bytes, threads);
  for (int t = 0; t < threads; t++) {
    fiber *f = fibers[(size_t)t];
    const unsigned u = (unsigned)t;
    f->id = t;
    f->where = {dim3(u % block_dim.x, u / block_dim.x % block_dim.y, u / block_dim.x / block_dim.y), block, block_dim,
                grid_dim};
    fiber_begin(f);
  }
  std::vector<fiber *> turn;
  while (live > 0 && !failed) {
    turn.clear();
    for (int t = 0; t < threads; t++)
      if (fibers[(size_t)t]->now == READY) turn.push_back(fibers[(size_t)t]);
    if (!async_arrive(turn.empty()) && turn.empty()) say_who_waits("");
    shuffle_order(turn);
    for (fiber *f : turn) {
      if (failed) break;
      enter(f);
      if (f->now == ENDED) f->left_behind = false;
    }
  }
  async_end();
  for (auto &s : statics) shared_check(s.second);
  shared_check(dynamic);
}

} // namespace

int thread_id() {
  return running->id;
}
uint64_t some_random() {
  return seed ? next_random() : 0;
}
uint64_t order_seed() {
  return seed;
}
void say(site at, const char *format, ...) {
  char text[300];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  report("%s:%d: %s", short_name(at.file), at.line, text);
}
void sleep_at(site at) {
  wait_until(at);
}
void wake(int thread) {
  fibers[(size_t)thread]->now = READY;
}

int barrier(site at, int id, int count, int value, bool wait) {
  if (id < 0 || id >= BARRIERS || (id > 0 && (count % 32 || count < 32 || count > threads))) {
    report("%s:%d: barrier %d of %d threads", short_name(at.file), at.line, id, count);
    wait_until(at);
  }
  barrier_state &b = barriers[id];
  b.arrived++;
  b.sum += value;
  const int expected = id ? count : live;
  if (b.expected && id && b.expected != count)
    report("%s:%d: barrier %d of %d threads, of which another expects %d", short_name(at.file), at.line, id, count,
           b.expected);
  b.expected = count;
  running->at = at;
  if (wait) b.waiting.push_back(running);
  if (b.arrived == expected) {
    barrier_release(id);
    // Not immediately: the last to arrive must not always be first to go on.
    if (wait) leave(false);
    while (failed) leave(false);
    return running->barrier_sum;
  }
  if (wait) wait_until(at);
  return running->barrier_sum;
}

int lane() {
  return running->id % 32;
}

void warp(site at, uint32_t mask, together run, const void *what, void *data, bool aligned) {
  const int w = running->id / 32;
  request r = {at, mask, run, what, data, aligned, false};
  running->asks = &r, lanes_asking[running->id / 32] |= 1u << running->id % 32;
  running->at = at;
  if (!(mask >> lane() & 1))
    report("%s:%d: lane %d is not in its own mask %08x", short_name(at.file), at.line, lane(), mask);
  else
    warp_try(w, r);
  if (failed || !r.done) wait_until(at);
}

void *shared(const void *key, size_t bytes) {
  auto found = statics.find(key);
  if (found == statics.end()) {
    static_bytes += bytes;
    if (static_bytes > STATIC_LIMIT || static_bytes + dynamic.bytes > LIMIT)
      report("%zu bytes of shared memory, the limit is %d with names and %d in all", static_bytes + dynamic.bytes,
             STATIC_LIMIT, LIMIT);
    found = statics.emplace(key, shared_make(bytes, 128)).first;
    memset(found->second.memory, 0xff, bytes);
  }
  return found->second.memory;
}
void *shared_dynamic() {
  return dynamic.memory;
}

void copy_start(site at, void *to, const void *from, int bytes, bool valid) {
  if ((uintptr_t)to % (unsigned)bytes || (uintptr_t)from % (unsigned)bytes)
    report("%s:%d: a copy of %d bytes that is not aligned to them", short_name(at.file), at.line, bytes);
  running->copies.push_back({to, from, bytes, valid, running->group});
}
void copy_commit() {
  running->group++;
}
void copy_wait(int groups) {
  std::vector<copy> &all = running->copies;
  size_t left = 0;
  for (const copy &c : all) {
    if (c.group >= running->group - groups) {
      all[left++] = c;
      continue;
    }
    if (c.valid)
      memcpy(c.to, c.from, (size_t)c.bytes);
    else
      memset(c.to, 0, (size_t)c.bytes);
  }
  all.resize(left);
}

int shared_limit(const void *kernel, size_t bytes) {
  failed = false;
  if (bytes > LIMIT) {
    report("%zu bytes of shared memory, the limit is %d", bytes, LIMIT);
    return cudaErrorLaunchFailure;
  }
  limits[kernel] = bytes;
  return cudaSuccess;
}

void fail(site at, const char *what) {
  failed = false;
  report("%s:%d: %s", short_name(at.file), at.line, what);
}

void kernel_names(const void *address, const named_kernel &k) {
  kernels[address] = k;
}
const named_kernel *kernel_named(const void *address) {
  const auto found = kernels.find(address);
  return found == kernels.end() ? nullptr : &found->second;
}

void launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, void *const *arguments) {
  failed = false;
  const named_kernel *known = kernel_named(kernel);
  if (!known) {
    report("a launch of what is no kernel");
    return;
  }
  const site at = known->at;
  launches++, launches_by_file[short_name(at.file)]++;
  const uint64_t count = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
  if (count < 1 || count > THREADS_MAX || block.z > 64 || blocks < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535) {
    report("%s:%d: %ux%ux%u blocks of %ux%ux%u threads", short_name(at.file), at.line, grid.x, grid.y, grid.z, block.x,
           block.y, block.z);
    return;
  }
  const auto limit = limits.find(kernel);
  if (shared_bytes > (limit == limits.end() ? (size_t)STATIC_LIMIT : limit->second)) {
    report("%s:%d: %zu bytes of dynamic shared memory were not asked for (wn_shared_limit)", short_name(at.file),
           at.line, shared_bytes);
    return;
  }
  threads = (int)count;
  while (fibers.size() < count) fibers.push_back(fiber_make());
  call_kernel = known->call;
  call_address = kernel;
  call_with = arguments;
  dynamic = shared_make(shared_bytes, 1024);
  static_bytes = 0;
  order_state = seed * 0x9E3779B97F4A7C15u + launches;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; i++) order[i] = i;
  shuffle_order(order);
  memory_open(true);
  for (uint64_t i = 0; i < blocks && !failed; i++) {
    const uint64_t b = order[i];
    run_block(dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)), block,
              grid);
  }
  memory_open(false);
  for (auto &s : statics) shared_free(s.second);
  statics.clear();
  shared_free(dynamic);
  if (failed) { // name the launch
    char text[sizeof error_text];
    snprintf(text, sizeof text, "launch at %.60s:%d: %.400s", short_name(at.file), at.line, error_text);
    memcpy(error_text, text, sizeof text);
  }
}

} // namespace emulate

void wn_emulate_seed(uint64_t seed) {
  emulate::streams_finish();
  emulate::seed = seed;
}
bool wn_emulated(void) {
  return true;
}
const char *wn_emulate_error(void) {
  emulate::streams_finish();
  if (!emulate::error_is_new) return nullptr;
  emulate::error_is_new = emulate::last_is_error = false;
  return emulate::error_text;
}
uint64_t wn_emulate_launches(void) {
  emulate::streams_finish();
  return emulate::launches;
}
uint64_t wn_emulate_launches_in(const char *file) {
  emulate::streams_finish();
  return emulate::launches_by_file[file];
}

static int device_capability = 8, device_processors = 3;
void wn_emulate_device(int capability, int processors) {
  device_capability = capability, device_processors = processors;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? device_processors : device_capability;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const bool was = emulate::last_is_error;
  emulate::last_is_error = false;
  return was ? cudaErrorLaunchFailure : cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInvalidValue) return "invalid argument";
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return error == cudaSuccess ? "no error" : emulate::error_text;
}
