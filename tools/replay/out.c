/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out.c - results as lines, CSV or JSON, and as a picture.
 *
 * OWNS      whether a row of this JSON array was printed before.
 *
 * LOCKING   none: one thread prints.
 */
#include "tools/replay/out.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

static bool first;

double kv_row_rate(const struct kv_row *row)
{
	return row->asked ? (double)row->hits / (double)row->asked : 0;
}

void kv_out_begin(enum kv_format format)
{
	first = true;
	if (format == KV_FORMAT_CSV)
		printf("policy,blocks,requests,hits,blocks_asked,hit_rate\n");
	if (format == KV_FORMAT_JSON)
		printf("[");
}

void kv_out_row(enum kv_format format, const struct kv_row *row)
{
	static const char *const forms[] = {
		"policy=%s blocks=%u requests=%zu hits=%llu blocks_asked=%llu "
		"hit_rate=%.4f\n",
		"%s,%u,%zu,%llu,%llu,%.4f\n",
		"{\"policy\": \"%s\", \"blocks\": %u, \"requests\": %zu, "
		"\"hits\": %llu, \"blocks_asked\": %llu, \"hit_rate\": %.4f}",
	};

	if (format == KV_FORMAT_JSON)
		printf(first ? "\n" : ",\n");
	first = false;
	printf(forms[format], row->policy, row->blocks, row->requests,
	       (unsigned long long)row->hits, (unsigned long long)row->asked,
	       kv_row_rate(row));
	fflush(stdout);
}

void kv_out_end(enum kv_format format)
{
	if (format == KV_FORMAT_JSON)
		printf("\n]\n");
}

#define LEFT 70.0
#define TOP 40.0
#define WIDTH 560.0
#define HEIGHT 340.0

struct frame {
	double first, last; /* logarithms of the capacities at the sides */
	double top;	    /* rate */
};

static double x_of(const struct frame *f, uint32_t capacity)
{
	double span = f->last > f->first ? f->last - f->first : 1;

	return LEFT + (log(capacity) - f->first) / span * WIDTH;
}

static double y_of(const struct frame *f, double rate)
{
	return TOP + HEIGHT - rate / f->top * HEIGHT;
}

static void text(FILE *out, double x, double y, const char *anchor,
		 const char *words)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y,
		anchor);
	for (; *words; words++)
		switch (*words) {
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '&':
			fputs("&amp;", out);
			break;
		default:
			fputc(*words, out);
		}
	fputs("</text>\n", out);
}

static void grid(FILE *out, const struct frame *f, const uint32_t *capacities,
		 size_t n)
{
	char words[32];

	for (int i = 0; i <= 5; i++) {
		double y = y_of(f, f->top * i / 5);

		fprintf(out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>\n",
			LEFT, y, LEFT + WIDTH);
		snprintf(words, sizeof(words), "%.3f", f->top * i / 5);
		text(out, LEFT - 8, y + 4, "end", words);
	}
	for (size_t i = 0; i < n; i++) {
		double x = x_of(f, capacities[i]);

		fprintf(out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#eee\"/>\n",
			x, TOP, TOP + HEIGHT);
		snprintf(words, sizeof(words), "%u", capacities[i]);
		text(out, x, TOP + HEIGHT + 18, "middle", words);
	}
	text(out, LEFT + WIDTH / 2, TOP + HEIGHT + 40, "middle",
	     "capacity in blocks");
}

static void curve(FILE *out, const struct frame *f, const uint32_t *capacities,
		  size_t n, const struct kv_curve *c, size_t which)
{
	static const char *const colors[] = {"#888888", "#1f77b4", "#d62728",
					     "#2ca02c", "#9467bd", "#8c564b",
					     "#000000"};
	const char *color = colors[which % 7];
	double y = TOP + 14 + 18 * (double)which;

	fprintf(out,
		"<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
		"points=\"",
		color);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%.1f,%.1f ", x_of(f, capacities[i]),
			y_of(f, c->rate[i]));
	fprintf(out, "\"/>\n");
	fprintf(out,
		"<path d=\"M%.1f %.1fh20\" stroke=\"%s\" "
		"stroke-width=\"2\"/>\n",
		LEFT + WIDTH + 15, y - 4, color);
	text(out, LEFT + WIDTH + 42, y, "start", c->name);
}

static double highest(size_t n, const struct kv_curve *curves, size_t n_curves)
{
	double top = 0;

	for (size_t c = 0; c < n_curves; c++)
		for (size_t i = 0; i < n; i++)
			top = fmax(top, curves[c].rate[i]);
	/* A step of 0.05 above the best. */
	return fmin(1, (floor(top * 20) + 1) / 20);
}

int kv_plot(const char *path, const char *title, const uint32_t *capacities,
	    size_t n, const struct kv_curve *curves, size_t n_curves)
{
	struct frame frame = {log(capacities[0]), log(capacities[n - 1]),
			      highest(n, curves, n_curves)};
	FILE *out = fopen(path, "we");

	if (!out)
		return -errno;
	fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" "
		     "height=\"440\" font-family=\"sans-serif\" "
		     "font-size=\"12\">\n<rect width=\"760\" height=\"440\" "
		     "fill=\"white\"/>\n");
	text(out, LEFT, 24, "start", title);
	grid(out, &frame, capacities, n);
	for (size_t c = 0; c < n_curves; c++)
		curve(out, &frame, capacities, n, &curves[c], c);
	fprintf(out, "</svg>\n");
	return fclose(out) == 0 ? 0 : -errno;
}
