/* Figures with their errors, and files of the rows that they are from. */
#ifndef CLI_ESTIMATE_H
#define CLI_ESTIMATE_H

#include <jansson.h>
#include <winnow/estimate.h>
#include <winnow/train.h>

/* Sets NAME_stderr, NAME_low and NAME_high, null where they are not known. */
void cli_estimate_json(json_t *j, const char *name, const wn_estimate *e);
/* The same, and NAME itself. */
void cli_estimate_json_whole(json_t *j, const char *name, const wn_estimate *e);
/* " +- 0.0110" and the like, times `unit`; "" where there is no error. */
const char *cli_estimate_error(const wn_estimate *e, double unit, int decimals, char out[32]);
/* " +- 0.0110 (95%: 3.1015 to 3.1454)"; "" where there is no error. */
const char *cli_estimate_interval(const wn_estimate *e, int decimals, char out[96]);
/* "64 blocks", "1 document". */
const char *cli_estimate_rows(uint64_t rows, const char *unit, char out[64]);

/* Writes a line for each row: number, tokens, sum of the losses, hits. 0, or the exit code after reporting. */
int cli_rows_save(wn_context *ctx, const char *path, const wn_eval_rows *rows);
/* Reads such a file; rows->sums is freed with free. 0, or the exit code after reporting. */
int cli_rows_read(wn_context *ctx, const char *path, wn_eval_rows *rows);

#endif
