#include "signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static wn_context *_Atomic target;

static void on_signal(int number) {
  wn_context *ctx = atomic_load(&target);
  if (ctx) wn_context_cancel(ctx);
  signal(number, SIG_DFL);
}

static void install(void (*handler)(int)) {
  const int numbers[] = {SIGINT, SIGTERM};
  for (int i = 0; i < 2; i++) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    /* A parent that set the signal to ignored (nohup, a background job) meant it. */
    if (handler != SIG_DFL && sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    sigaction(numbers[i], &action, NULL);
  }
}

void cli_signals_begin(wn_context *ctx) {
  atomic_store(&target, ctx);
  install(on_signal);
}

void cli_signals_end(void) {
  install(SIG_DFL);
  atomic_store(&target, NULL);
}
