#include "ui.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "signals.h"

/* Prints one line, whatever the text contains. */
static void ui_print_line(const char *prefix, const char *format, va_list args) {
  char raw[2048], text[4096];
  vsnprintf(raw, sizeof raw, format, args);
  wn_line_escape(raw, text, sizeof text);
  fflush(stdout);
  fprintf(stderr, "%s%s\n", prefix, text);
}

/* Who has reported why the program ends: nobody, a command (cli_error), or a thread that ends it (cli_last_word). */
enum { UI_NOBODY, UI_COMMAND, UI_THREAD };
static atomic_int ui_said;

bool cli_last_word(void) {
  int before = UI_NOBODY;
  return atomic_compare_exchange_strong(&ui_said, &before, UI_THREAD);
}

int cli_error(const char *format, ...) {
  va_list args;
  int before = UI_NOBODY;
  if (!atomic_compare_exchange_strong(&ui_said, &before, UI_COMMAND) && before == UI_THREAD) return 1;
  va_start(args, format);
  ui_print_line("winnow: ", format, args);
  va_end(args);
  return 1;
}

int cli_grow(void *array, size_t element, size_t wanted, size_t *room) {
  void *present, *wider;
  if (wanted <= *room) return 0;
  memcpy(&present, array, sizeof present); /* no assignment: *array may point to any type */
  wider = realloc(present, 2 * wanted * element);
  if (!wider) return cli_error("out of memory");
  memcpy(array, &wider, sizeof wider);
  *room = 2 * wanted;
  return 0;
}

void cli_warning(const char *format, ...) {
  va_list args;
  va_start(args, format);
  ui_print_line("winnow: warning: ", format, args);
  va_end(args);
}

int cli_usage_error(const char *command, const char *format, ...) {
  char text[1536];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const char *name = strncmp(command, "winnow ", 7) ? "" : command + 7;
  if (*command == '/') /* a command of a conversation, such as /set */
    cli_error("%s: %s (see /help)", command, text);
  else
    cli_error("%s%s%s (see %s --help)", name, *name ? ": " : "", text, command);
  return 2;
}

int cli_fail(const wn_context *ctx, wn_status status) {
  if (status == WN_ERR_CANCELLED) {
    cli_error("interrupted");
    return CLI_INTERRUPTED;
  }
  const char *detail = ctx ? wn_context_error(ctx) : "";
  return cli_error("%s", *detail ? detail : wn_status_name(status));
}

void cli_note(const struct cli_common *common, const char *format, ...) {
  if (common->quiet) return;
  va_list args;
  va_start(args, format);
  ui_print_line("", format, args);
  va_end(args);
}

static void ui_log_line(void *user, wn_log_level level, const char *line) {
  const struct cli_common *common = user;
  if (level == WN_LOG_WARNING)
    cli_warning("%s", line);
  else if (common->verbose)
    fprintf(stderr, "winnow: %s\n", line);
}

int cli_context_open(const struct cli_common *common, wn_context **out) {
  wn_context_options options = {.size = sizeof options,
                                .threads = (int)common->threads,
                                .backend = common->backend,
                                .pre = common->pre,
                                .exact_rows = common->exact_rows,
                                .log = ui_log_line,
                                .log_user = (void *)common};
  wn_status status = wn_context_create(&options, out);
  if (status == WN_OK) return 0;
  int code = cli_fail(*out, status);
  wn_context_destroy(*out);
  *out = NULL;
  return code;
}

json_t *cli_number(double x) {
  return isfinite(x) ? json_real(x) : json_null();
}

json_t *cli_text(const char *text) {
  char line[4 * 4096];
  json_t *j = json_string(text);
  if (j) return j;
  wn_line_escape(text, line, sizeof line);
  return json_string(line);
}

int cli_print_json(json_t *value) {
  if (!value) return cli_error("out of memory");
  char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
  json_decref(value);
  if (!text) return cli_error("a result could not be written as JSON");
  puts(text);
  free(text);
  return 0;
}

double cli_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t cli_peak_resident(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage)) return 0;
  return (uint64_t)usage.ru_maxrss * 1024; /* Linux gives kilobytes */
}

static char *ui_ring(void) {
  static char buffers[16][32];
  static int next;
  next = (next + 1) % 16;
  return buffers[next];
}

static const char *ui_scaled(double x, const char *const *units) {
  char *text = ui_ring();
  int u = 0;
  while (x >= 999.5 && units[u + 1]) {
    x /= 1000;
    u++;
  }
  snprintf(text, 32,
           x >= 99.95 || (u == 0 && x == (double)(long)x) ? "%.0f%s"
           : x >= 9.995                                   ? "%.1f%s"
                                                          : "%.2f%s",
           x, units[u]);
  return text;
}

const char *cli_bytes(double bytes) {
  static const char *const units[] = {" B", " kB", " MB", " GB", " TB", NULL};
  return ui_scaled(bytes, units);
}

const char *cli_count(double n) {
  static const char *const units[] = {"", "k", "M", "G", "T", NULL};
  return ui_scaled(n, units);
}

const char *cli_duration(double seconds) {
  char *text = ui_ring();
  if (!(seconds >= 0) || seconds > 1e7) seconds = 0;
  long s = (long)(seconds + 0.5);
  if (s >= 3600)
    snprintf(text, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else
    snprintf(text, 32, "%ld:%02ld", s / 60, s % 60);
  return text;
}

void cli_progress_begin(struct cli_progress *p, const struct cli_common *common, const char *label, const char *unit) {
  const char *term = getenv("TERM");
  *p = (struct cli_progress){.label = label, .unit = unit, .enabled = !common->quiet, .last_percent = -1};
  p->terminal = isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
  p->start = cli_seconds();
  p->last = p->terminal ? 0 : p->start;
}

static int ui_terminal_width(void) {
  struct winsize size;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total, const char *extra) {
  if (!p->enabled) return;
  double now = cli_seconds(), elapsed = now - p->start;
  int percent = total ? (int)(100.0 * (double)done / (double)total) : 0;
  bool last = total && done >= total;
  if (p->terminal) {
    if (!last && now - p->last < 0.1) return;
  } else {
    bool due = now - p->last >= 5 && percent / 10 > p->last_percent / 10;
    if (!(last && p->last_percent < 100) && !due && !(now - p->last >= 30)) return;
  }
  p->last = now;
  p->last_percent = percent;
  uint64_t here = done > p->first ? done - p->first : 0;
  double rate = elapsed > 0 ? (double)here / elapsed : 0;
  const char *left = last                ? cli_duration(elapsed)
                     : rate > 0 && total ? cli_duration((double)(total - done) / rate)
                                         : "-";
  char line[512];
  bool is_bytes = !strcmp(p->unit, "B");
  if (rate >= 100) rate = (double)(uint64_t)rate;
  const char *rate_text = is_bytes ? cli_bytes(rate) : cli_count(rate);
  char slow[64] = ""; /* for steps of many seconds: how many */
  if (!is_bytes && rate > 0 && rate < 0.1) snprintf(slow, sizeof slow, "%s s each", cli_count(1 / rate));
  char bar[32] = "";
  if (p->terminal) {
    int filled = percent * 24 / 100;
    for (int i = 0; i < 24; i++) bar[i] = i < filled ? '#' : '.';
    bar[24] = 0;
  }
  snprintf(line, sizeof line, "%s %s%s%s%3d%%  %s%s%s%s  %s %s%s%s", p->label, p->terminal ? "[" : "", bar,
           p->terminal ? "] " : "", percent, *slow ? slow : rate_text, *slow || is_bytes ? "" : " ",
           *slow || is_bytes ? "" : p->unit, *slow ? "" : "/s", left, last ? "in all" : "left", extra ? "  " : "",
           extra ? extra : "");
  if (p->terminal) {
    int width = ui_terminal_width() - 1;
    fprintf(stderr, "\r%.*s\033[K", width, line);
    p->drawn = true;
  } else {
    fprintf(stderr, "%s\n", line);
  }
  fflush(stderr);
}

void cli_progress_on(void *bar, uint64_t done, uint64_t total) {
  cli_progress_update(bar, done, total, NULL);
}

void cli_progress_clear(struct cli_progress *p) {
  if (p->drawn) fputs("\r\033[K", stderr);
  p->drawn = false;
}

void cli_progress_end(struct cli_progress *p) {
  if (p->drawn) fputc('\n', stderr);
  p->drawn = false;
  p->enabled = false;
}
