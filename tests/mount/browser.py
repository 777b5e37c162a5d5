# SPDX-License-Identifier: Apache-2.0
"""browser.py FILE.svg [PICTURE.png [WIDTH HEIGHT]] - open a picture of kvfs flame in headless
chromium, click its frames, and check what they do; write PICTURE.png.  With WIDTH and HEIGHT, only
write the picture of any file.  The browser is driven by its pipe."""
import base64
import json
import os
import subprocess
import sys
import tempfile


class Browser:
    def __init__(self, folder, width, height):
        ours, theirs = os.pipe(), os.pipe()  # the browser reads descriptor 3 and writes 4
        command = 'exec 3<&%d 4>&%d; exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage ' \
            '--remote-debugging-pipe --user-data-dir="%s" about:blank' % (ours[0], theirs[1], folder)
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(ours[0], theirs[1]),
                                        stderr=subprocess.DEVNULL, env={**os.environ, "HOME": folder})
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.of, self.n, self.errors, self.events = ours[1], os.fdopen(theirs[0], "rb"), 0, [], []
        self.buffer = b""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Runtime", "Page", "Log", "Network":
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def message(self):
        while b"\0" not in self.buffer:
            data = os.read(self.of.fileno(), 1 << 16)
            if not data:
                sys.exit("the browser has ended")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        method = message.get("method", "")
        if method == "Runtime.exceptionThrown" or method == "Log.entryAdded":
            self.errors.append(message["params"])
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.events.append(message["params"]["request"]["url"])
        return message

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.n:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self.message()

    def value(self, code):
        return self.call("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def click(self, n):
        box = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])(frames[{n}].querySelector('rect').getBoundingClientRect())")
        for kind in "mousePressed", "mouseReleased":
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


def check(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: got {got}, expected {expected}")


def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder, *(map(int, sys.argv[3:]) if sys.argv[3:] else (1200, 160)))
        try:
            browser.open(f"file://{os.path.abspath(sys.argv[1])}")
            if len(sys.argv) > 2:
                picture = browser.call("Page.captureScreenshot", format="png")["data"]
                with open(sys.argv[2], "wb") as out:
                    out.write(base64.b64decode(picture))
            if len(sys.argv) > 3:
                return
            shown = "frames.filter(f => f.style.display != 'none').length"
            width = "Math.round(frames[%d].querySelector('rect').getAttribute('width'))"
            n = browser.value("frames.length")
            before = browser.value(width % 2)
            check("a frame's width is a part", 0 < before < 1200, True)
            browser.click(2)
            check("a click zooms to the frame", browser.value(width % 2), 1200)
            check("the frame above stays", browser.value(width % 0), 1200)
            check("frames beside it are hidden", browser.value(shown) < n, True)
            browser.click(0)
            check("a click on the top frame shows all", (browser.value(shown), browser.value(width % 2)), (n, before))
            browser.click(2)
            browser.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
            check("Escape shows all", browser.value(shown), n)
            check("errors", browser.errors, [])
            check("requests", [url for url in browser.events if ":" in url and not url.startswith("file:")], [])
        finally:
            browser.process.kill()
            browser.process.wait()


main()
