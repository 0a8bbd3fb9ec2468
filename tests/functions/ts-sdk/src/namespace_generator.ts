// A generator. For the ConfigMap `{name: team-a, KEY: VALUE…}` it creates the Namespace
// team-a, and in it a ConfigMap `settings` with the other keys. A second run replaces
// the objects of the first run.

import { Configs, FunctionConfigError } from 'kpt-functions';
import { ConfigMap, Namespace } from 'kpt-functions/dist/src/gen/io.k8s.api.core.v1';

const NAME = 'name';

export async function generateNamespace(configs: Configs): Promise<void> {
  const data = configs.getFunctionConfigMap();
  const name = data?.get(NAME);
  if (!data || !name) {
    throw new FunctionConfigError(
      `functionConfig names no namespace: give a ConfigMap with data.${NAME}`
    );
  }

  configs.insert(Namespace.named(name));

  const settings = [...data].filter(([key]) => key !== NAME);
  if (settings.length > 0) {
    configs.insert(
      new ConfigMap({
        metadata: { name: 'settings', namespace: name },
        data: Object.fromEntries(settings),
      })
    );
  }
}

// The SDK prints this text for --help.
generateNamespace.usage = `
Generates a Namespace, and a ConfigMap of its settings.

The functionConfig is a ConfigMap. Its data's key "${NAME}" is the namespace's name,
every other key goes into the ConfigMap "settings" of that namespace.
`;
