#include "signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static wn_context *_Atomic target;

static volatile sig_atomic_t reloads, /* SIGHUP has asked for it */
    stays;                            /* the terminal may hang up (nohup) */

static volatile sig_atomic_t patient,
    ended; /* for answers. patient: any number of SIGINT is fine; ended: another signal came */

static void on_signal(int number) {
  wn_context *ctx = atomic_load(&target);
  if (ctx) wn_context_cancel(ctx);
  if (number != SIGINT) ended = 1;
  if (number != SIGINT || !patient) signal(number, SIG_DFL);
}

/* Generated kernels (oneDNN's and others) use the stack pointer as a general register, so a handler's frame on the
 * ordinary stack would overwrite data. Linux delivers signals to the main thread if it can, so that thread gets the
 * handlers' stack. */
static char handler_stack[64 << 10];

static void signals_install(void (*handler)(int)) {
  if (handler != SIG_DFL) sigaltstack(&(stack_t){.ss_sp = handler_stack, .ss_size = sizeof handler_stack}, NULL);
  /* Closing the terminal (SIGHUP) ends a run like Ctrl-C: its state is saved. */
  const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < 3; i++) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK}, old;
    sigemptyset(&action.sa_mask);
    /* A signal that the parent set to ignored (nohup, a background job) stays ignored. */
    if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    sigaction(numbers[i], &action, NULL);
  }
}

static void on_hangup(int number, siginfo_t *info, void *where) {
  (void)where;
#ifdef SI_KERNEL
  const bool terminal = info->si_code == SI_KERNEL; /* nobody sent it */
#else
  const bool terminal = info->si_pid == 0;
#endif
  if (!terminal)
    reloads = 1;
  else if (!stays)
    on_signal(number);
}

/* A mapped file became shorter while it was in use: the program must end, but says which file it was. */
static void on_bus_error(int number, siginfo_t *info, void *where) {
  static const char begin[] = "winnow: ", end[] = ": the file was shortened while it was in use\n";
  const char *path = wn_mapped_file(info->si_addr);
  (void)where;
  if (!path) { /* another fault: handled as without this handler */
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  if (write(2, begin, sizeof begin - 1) < 0 || write(2, path, strlen(path)) < 0 || write(2, end, sizeof end - 1) < 0)
    _exit(1);
  _exit(1);
}

void cli_signals_bus(void) {
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  sigaltstack(&(stack_t){.ss_sp = handler_stack, .ss_size = sizeof handler_stack}, NULL);
  sigaction(SIGBUS, &action, NULL);
}

void cli_signals_begin_answer(wn_context *ctx, bool keeps) {
  ended = 0;
  patient = keeps;
  cli_signals_begin(ctx);
}

bool cli_signals_end_answer(void) {
  if (!patient) {
    cli_signals_end();
    return ended;
  }
  signal(SIGTERM, SIG_DFL);
  signal(SIGHUP, SIG_DFL);
  return ended;
}

void cli_signals_begin(wn_context *ctx) {
  atomic_store(&target, ctx);
  signals_install(on_signal);
}

void cli_signals_begin_reload(void) {
  struct sigaction action = {.sa_sigaction = on_hangup, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, old;
  sigemptyset(&action.sa_mask);
  stays = sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
  sigaction(SIGHUP, &action, NULL);
}

bool cli_signals_reload(void) {
  const bool asked = reloads;
  reloads = 0;
  return asked;
}

void cli_signals_end(void) {
  signals_install(SIG_DFL);
  atomic_store(&target, NULL);
}
