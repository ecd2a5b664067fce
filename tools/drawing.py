"""SVG that is readable on light and on dark ground, for tools/make-drawings and tools/figures."""
import os
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STYLE = """text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:13px}
.ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#57606a}.title{font-size:16px;font-weight:600}.strong{font-weight:600}
.code{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:12px}.number{fill:#ffffff;font-weight:600}
.grid{stroke:#d8dee4}.level{stroke:#57606a;stroke-width:1.5;stroke-dasharray:5 4}.way{stroke:#57606a;fill:none;stroke-width:1.5}
.head{fill:#57606a}.box{fill:#f6f8fa;stroke:#8c959f}.beside{fill:none;stroke:#8c959f;stroke-dasharray:4 3}
.c0{stroke:#0a5fc4}.f0{fill:#0a5fc4}.c1{stroke:#c2410c}.f1{fill:#c2410c}.c2{stroke:#1a7f37}.f2{fill:#1a7f37}
.c3{stroke:#8250df}.f3{fill:#8250df}.c4{stroke:#57606a}.f4{fill:#57606a}.c5{stroke:#bf3989}.f5{fill:#bf3989}
.line{fill:none;stroke-width:2.5;stroke-linejoin:round}
.band{stroke:none;opacity:.2}.seed{opacity:.6}.mark{stroke-width:2}.thin{fill:none;stroke-width:1.5}.bar{stroke-width:9;opacity:.8}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9ea7b3}.number{fill:#0d1117}.grid{stroke:#2b323b}.level{stroke:#9ea7b3}
.way{stroke:#9ea7b3}.head{fill:#9ea7b3}.box{fill:#161b22;stroke:#6e7681}.beside{stroke:#6e7681}
.c0{stroke:#6cb6ff}.f0{fill:#6cb6ff}.c1{stroke:#ff9b5e}.f1{fill:#ff9b5e}
.c2{stroke:#57c26b}.f2{fill:#57c26b}.c3{stroke:#c49bff}.f3{fill:#c49bff}.c4{stroke:#9ea7b3}.f4{fill:#9ea7b3}.c5{stroke:#f778ba}.f5{fill:#f778ba}
}"""


class Drawing:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>", f"<style>\n{STYLE}\n</style>",
            f'<rect class="ground" width="{width}" height="{height}"/>']

    def text(self, x, y, text, kind="ink", anchor="start"):
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points, kind):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def polygon(self, points, kind):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon class="{kind}" points="{path}"/>')

    def rect(self, x, y, width, height, kind):
        self.parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>')

    def cell(self, x, y, width, height, kind, shade):
        """Of a grid, from 0, no shade, to 1."""
        self.parts.append(f'<rect class="{kind}" fill-opacity="{0.8 * shade:.2f}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')

    def circle(self, x, y, r, kind):
        self.parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>')

    def arrow(self, points):
        """A line with a head at its last point; its last stretch is horizontal or vertical."""
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        self.line(points[:-1] + [(x - 8 * dx, y - 8 * dy)], "way")
        self.polygon([(x, y), (x - 9 * dx - 5 * dy, y - 9 * dy - 5 * dx), (x - 9 * dx + 5 * dy, y - 9 * dy + 5 * dx)], "head")

    def done(self, about=""):
        """The text of the file; about: an element of the head."""
        return "\n".join(self.parts[:2] + [about] * bool(about) + self.parts[2:] + ["</svg>\n"])


def put(path, text, check):
    """Writes the file; with check writes nothing and returns whether the file is another."""
    if check:
        try:
            with open(path, encoding="utf-8") as f:
                return f.read() != text
        except OSError:
            return True
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return False
