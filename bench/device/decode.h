/* bench_device's question "decode". */
#ifndef WINNOW_BENCH_DECODE_H
#define WINNOW_BENCH_DECODE_H

#include <jansson.h>
#include <winnow/context.h>

wn_status decode_answer(wn_context *ctx, json_t *question, json_t *out);
void decode_clear(void);

#endif
