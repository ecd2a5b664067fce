/* What the user sees: one-line errors, notes, progress, JSON, and the opening of a context. */
#ifndef CLI_UI_H
#define CLI_UI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <winnow/context.h>
#include "args.h"

/* "winnow: ..." on standard error, one line. cli_error returns 1, cli_usage_error 2, to be returned from main. */
__attribute__((format(printf, 1, 2))) int cli_error(const char *format, ...);
__attribute__((format(printf, 2, 3))) int cli_usage_error(const char *command, const char *format, ...);
/* Makes room in *array, allocated with malloc for *room elements, for `more` behind the first `count`. 0, or the exit
 * code after reporting. */
#define CLI_GROW(array, count, more, room) cli_grow(array, sizeof **(array), (size_t)(count) + (size_t)(more), room)
int cli_grow(void *array, size_t element, size_t wanted, size_t *room);
/* For a thread that is about to end the program: may it report why? False if cli_error has reported something; after
 * true cli_error is silent. */
bool cli_last_word(void);
/* Prints "winnow: warning: ..."; the command goes on. */
__attribute__((format(printf, 1, 2))) void cli_warning(const char *format, ...);
/* Prints the library's detail for `status`, or the status's name if there is none; returns 1. */
int cli_fail(const wn_context *ctx, wn_status status);
/* Prints a note on standard error, without disturbing a progress bar; nothing with --quiet. */
__attribute__((format(printf, 2, 3))) void cli_note(const struct cli_common *common, const char *format, ...);

/* Opens a context by the common options. Returns 0, or the exit code after reporting. */
int cli_context_open(const struct cli_common *common, wn_context **out);

/* A number for JSON; null if it is not finite, as the perplexity of a very large loss. */
json_t *cli_number(double x);
/* A path or name for JSON; bytes that are not UTF-8 become "\\xe9". */
json_t *cli_text(const char *text);
/* Prints and releases the value: one JSON document on standard output. Returns the exit code. */
int cli_print_json(json_t *value);

double cli_seconds(void); /* monotonic */
/* Largest resident size of this process so far, in bytes. */
uint64_t cli_peak_resident(void);
/* "12.3 MB", "1.2 GB": decimal units, into a static ring of buffers. */
const char *cli_bytes(double bytes);
/* "1:02:03", "4:05", into the same ring. */
const char *cli_duration(double seconds);
/* A count with k, M or G: "33.6M". */
const char *cli_count(double n);

/* A progress bar with rate and time left on a terminal; a plain line every ten percent otherwise (and at most one in
 * five seconds). Nothing when quiet. */
struct cli_progress {
  const char *label, *unit; /* unit: "B" (bytes), "tok", "step", ... */
  bool enabled, terminal, drawn;
  double start, last; /* seconds */
  uint64_t first;     /* done before this run, not counted in the rate */
  int last_percent;
};
void cli_progress_begin(struct cli_progress *p, const struct cli_common *common, const char *label, const char *unit);
/* extra: more text at the end of the line ("loss 3.21"), or NULL. */
void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total, const char *extra);
void cli_progress_on(void *bar, uint64_t done, uint64_t total); /* the same, as a callback for the library */
void cli_progress_clear(struct cli_progress *p);                /* wipes the bar so that a line can be printed */
void cli_progress_end(struct cli_progress *p);

#endif
