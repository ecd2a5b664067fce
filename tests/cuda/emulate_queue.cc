/* Streams as queues. Work runs only while the host waits: then one of the streams whose next task may run is chosen,
 * until what the host waits for is done. So in some order a stream that fails to wait for another's event runs ahead of
 * it, and work that the host does not wait for is not done.
 *
 *   seed 0    in the order of submission
 *   seed 1    the newest stream runs ahead as far as its waits allow
 *   seed 2    the oldest stream does
 *   others    at random, task by task
 *
 * A task is a whole kernel or copy. Kernels that could run at the same time run one after the other, in both orders. */
#include <deque>

#include "cuda/emulate_queue.h"

namespace emulate {

bool kernel_call_copy::take(const void *address, dim3 g, dim3 b, size_t bytes, void *const *arguments) {
  const named_kernel *known = kernel_named(address);
  if (!known) return false;
  kernel = address, grid = g, block = b, shared_bytes = bytes, sizes = known->sizes;
  size_t blocks = 0;
  at.clear();
  for (const size_t size : sizes) at.push_back(blocks), blocks += (size + 63) / 64;
  data.assign(blocks, argument_block());
  for (size_t i = 0; i < sizes.size(); i++) memcpy(&data[at[i]], arguments[i], sizes[i]);
  return true;
}

void kernel_call_copy::run() {
  std::vector<void *> arguments;
  for (const size_t i : at) arguments.push_back(&data[i]);
  launch(kernel, grid, block, shared_bytes, arguments.data());
}

bool kernel_call_copy::is_stale() const {
  for (size_t i = 0; i < at.size(); i++)
    for (size_t n = 0; n + sizeof(void *) <= sizes[i]; n += sizeof(void *)) {
      void *p;
      memcpy(&p, reinterpret_cast<const char *>(&data[at[i]]) + n, sizeof p);
      if (is_given_back(p)) return true;
    }
  return false;
}

namespace {

struct task {
  uint64_t number; /* in the order of submission */
  std::function<void()> run;
  std::shared_ptr<bool> after; /* may run only once this is set; NULL: at once */
};
struct queue {
  const void *stream;
  std::deque<task> tasks;
};
std::vector<queue> &queues = *new std::vector<queue>; /* by stream, oldest first; never destroyed */
uint64_t asked;

queue *queue_of(const void *stream) {
  for (queue &q : queues)
    if (q.stream == stream) return &q;
  return nullptr;
}

bool may_run(const queue &q) {
  return !q.tasks.empty() && (!q.tasks.front().after || *q.tasks.front().after);
}

/* The queue whose next task runs; NULL: none may. */
queue *chosen() {
  std::vector<queue *> ready;
  for (queue &q : queues)
    if (may_run(q)) ready.push_back(&q);
  if (ready.empty()) return nullptr;
  switch (order_seed()) {
  case 0: {
    queue *first = ready[0];
    for (queue *q : ready)
      if (q->tasks.front().number < first->tasks.front().number) first = q;
    return first;
  }
  case 1:
    return ready.back();
  case 2:
    return ready[0];
  default:
    return ready[some_random() % ready.size()];
  }
}

bool any_left() {
  for (const queue &q : queues)
    if (!q.tasks.empty()) return true;
  return false;
}

/* False: no task may run. */
bool run_one() {
  queue *q = chosen();
  if (!q) {
    if (any_left()) fail(site::here(), "streams wait for ever");
    for (queue &x : queues) x.tasks.clear();
    return false;
  }
  const task t = q->tasks.front();
  q->tasks.pop_front();
  if (t.run) t.run();
  return true;
}

} // namespace

bool has_streams() {
  return !queues.empty();
}

void stream_made(const void *stream) {
  queues.push_back({stream, {}});
}

void stream_add(const void *stream, const std::function<void()> &run) {
  queue *q = queue_of(stream);
  if (capture_is_on(stream))
    capture_add(stream, run);
  else if (q)
    q->tasks.push_back({++asked, run, nullptr});
  else
    run();
}

void stream_waits(const void *stream, const std::shared_ptr<bool> &passed) {
  queue *q = queue_of(stream);
  if (q) q->tasks.push_back({++asked, nullptr, passed});
}

void streams_run(const bool *until) {
  while (!*until && run_one()) continue;
}

void streams_step() {
  if (any_left()) (void)run_one();
}

void stream_run(const void *stream) {
  queue *q = queue_of(stream);
  while (q && !q->tasks.empty() && run_one()) continue;
}

void streams_finish() {
  while (any_left() && run_one()) continue;
}

} // namespace emulate
