/* Commands that several processes run as one (winnow/dist.h). */
#ifndef CLI_TOGETHER_H
#define CLI_TOGETHER_H

#include "ui.h"

/* cli_context_open, then the context joins the processes that were started together with this one. From then on all but
 * the first are silent, and only the first handles signals. */
int cli_together_open(const struct cli_common *common, wn_context **out);
/* Leaves the group and destroys the context. code: the command's exit code. */
void cli_together_close(wn_context *ctx, int code);
bool cli_together_speaks(const wn_context *ctx); /* the first process, or the only one */

#endif
