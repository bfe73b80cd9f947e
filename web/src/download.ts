/** Gives the user a file. */
export function download(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\p{L}\p{N}._ -]+/gu, "").trim() || "olivine";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
