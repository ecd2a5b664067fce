/* A sweep over the share tau as SVG; it is not part of a report's page. */
#include <math.h>

#include "base/misuse.h"
#include "base/number.h"
#include "report/drawing.h"

enum { SWEEP_METRICS = 3 };

/* How much better a point is than without the content, by metric. */
static void sweep_gains(const wn_sweep_point *p, const wn_sweep_point *baseline, double out[SWEEP_METRICS]) {
  out[0] = baseline->loss - p->loss;
  out[1] = p->accuracy - baseline->accuracy;
  out[2] = p->exact - baseline->exact;
}

wn_status wn_sweep_save_svg(wn_context *ctx, const wn_sweep_report *report, const char *title, const char *path) {
  WN_CHECK_CALL(WN_POINTER(report), WN_POINTER(path));
  static const char *const names[SWEEP_METRICS] = {"loss", "accuracy", "tasks answered"};
  struct wn_drawing d;
  double all[SWEEP_METRICS], here[SWEEP_METRICS];
  char gamma[32];
  wn_drawing_begin(&d, ctx, "sweep", -1, "Thresholds", NULL);
  d.figure.axes = 1;
  d.figure.x[0].label = "share tau of the weight that is kept";
  d.figure.y.label = "part of the improvement over no content that is kept";
  sweep_gains(&report->full, &report->baseline, all);
  for (int m = 0; m < SWEEP_METRICS; m++) {
    if (!(all[m] > 0)) continue;
    double *line = wn_drawing_line(&d, report->count, d.figure.series_count, 0, names[m]);
    for (int i = 0; line && i < report->count; i++) {
      sweep_gains(&report->point[i], &report->baseline, here);
      line[i] = report->point[i].tau;
      line[3 * report->count + i] = fmax(here[m] / all[m], -0.2); /* points far below the baseline need no detail */
    }
  }
  if (d.status == WN_OK && d.figure.series_count == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "plot: nothing is better than without the content");
  wn_print(gamma, sizeof gamma, "gamma %.3g", report->gamma);
  wn_drawing_level(&d, gamma, report->gamma);
  return wn_drawing_save_svg(&d, title, path);
}
