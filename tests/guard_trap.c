/* Linked into every test program. With WINNOW_GUARD, touching an array of backend guard is a failure that shows its
 * place: first the stack is written to standard error as lines "guard: FUNCTION", innermost first, then cmocka turns
 * the signal into a failure of the current test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void (*next)(int);

/* Prints the stack's functions and lines with addr2line, as far as the program has them. */
static void trap_say(void) {
  void *calls[32];
  char program[4096], at[32][24], *argv[40] = {"addr2line", "-f", "-p", "-s", "-e", program};
  const int n = backtrace(calls, 32);
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  Dl_info info, own;
  int k = 6;
  if (length < 0 || !dladdr((void *)(uintptr_t)&trap_say, &own)) return;
  program[length] = 0;
  fprintf(stderr, "guard: an array of the backend was touched outside operations and copies, in\n");
  for (int i = 0; i < n && k < 39; i++) {
    if (!dladdr(calls[i], &info) || info.dli_fbase != own.dli_fbase) continue;
    snprintf(at[i], sizeof at[i], "0x%zx", (size_t)((char *)calls[i] - (char *)info.dli_fbase));
    argv[k++] = at[i];
  }
  argv[k] = NULL;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execvp(argv[0], argv);
    _exit(127);
  }
  if (child > 0) waitpid(child, NULL, 0);
}

static void trap(int number) {
  trap_say();
  next(number);
}

/* cmocka installs its handler through this before each test; ours goes in between. */
void (*signal(int number, void (*handler)(int)))(int) {
  struct sigaction now = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
  if (number == SIGSEGV && getenv("WINNOW_GUARD") && handler != SIG_DFL && handler != SIG_IGN)
    next = handler, now.sa_handler = trap, now.sa_flags |= SA_NODEFER;
  sigemptyset(&now.sa_mask);
  if (sigaction(number, &now, &before) != 0) return SIG_ERR;
  return before.sa_handler == trap ? next : before.sa_handler;
}
