// The page's client has the types that its declarations say: `make lint` compiles this.
import { Live } from "../../../server/live/page/client.js";
import type { Live as Declared } from "../../../server/live/page/tickrt.js";

export const client: new (...given: ConstructorParameters<typeof Declared>) => Declared = Live;
