/* Access to a backend's arrays for tests (reach.h). */
#define WN_TESTS_REACH_INSIDE
#include "reach.h"

#include "backends/guard/guard.h"

void *reach(const void *p) {
  void *real;
  return wn_guard_find(NULL, "a test", "it", p, 0, &real) == WN_OK ? real : (void *)(uintptr_t)p;
}

wn_status reach_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch, const struct wn_step *step,
                     struct wn_step_result *result) {
  static void *grads; /* kept, since a step must not allocate */
  static size_t room;
  const struct wn_memory *memory = model->backend->memory;
  struct wn_step own = *step;
  if (memory->host || !step->grads || reach(step->grads) != step->grads)
    return wn_model_step(model, ws, batch, step, result);
  const size_t bytes = model->table.total * wn_dtype_size(model->dtype);
  if (bytes > room) {
    memory->release(grads);
    grads = NULL, room = 0;
    WN_TRY(memory->allocate(model->ctx, "a test's gradients", bytes, &grads));
    room = bytes;
  }
  own.grads = grads;
  wn_status status = memory->copy_in(model->ctx, grads, step->grads, bytes);
  if (status == WN_OK) status = wn_model_step(model, ws, batch, &own, result);
  if (status == WN_OK) status = wn_memory_read(model->ctx, memory, step->grads, grads, bytes);
  return status;
}
