// Search runs in a Worker, which browsers forbid for pages opened from disk (file://). There the worker's script runs in a
// hidden frame instead, with the same interface. Pages from a server keep the browser's own Worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inner) return;
        const copy = new MessageEvent("message", { data: event.data });
        if (this.onmessage) this.onmessage(copy);
        this.dispatchEvent(copy);
      });
      const loaded = new Promise((done) => frame.addEventListener("load", done));
      this.queue = loaded;
      const page = this.inner.document;
      page.open();
      page.write(
        "<html><body><script>" +
          'postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data: data, source: window }));' +
          "importScripts = (...addresses) => Promise.all(addresses.map((one) => new Promise((done) => {" +
          'const script = document.createElement("script"); script.src = one; script.onload = done;' +
          "document.body.appendChild(script); })));" +
          "<\/script><script src=\"" + address + "\"><\/script></body></html>"
      );
      page.close();
    }
    postMessage(data) {
      this.queue = this.queue.then(() => {
        this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data: data }));
      });
    }
    terminate() {}
  };
}
